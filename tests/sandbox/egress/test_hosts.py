"""Names and addresses: one canonical form, rules by whole labels, and what is public."""

from __future__ import annotations

import pytest

from workbench.errors import OptionsError
from workbench.sandbox.egress.hosts import HostRule, canonical, is_public, parse_address, split_port


def allows(rule: str, host: str, port: int = 443) -> bool:
    return HostRule.parse(rule).matches(canonical(host), port)


@pytest.mark.parametrize("host", ["example.com", "EXAMPLE.com", "example.com.", "eXample.COM."])
def test_a_name_is_the_same_in_any_case_and_with_the_roots_dot(host: str) -> None:
    assert allows("example.com", host)
    assert allows("Example.Com.", host)


@pytest.mark.parametrize(
    "host",
    [
        "example.com.evil.com",
        "notexample.com",
        "example.comm",
        "www.example.com",
        "com",
        "example.com.evil",
        "evil.com",
    ],
)
def test_a_name_allows_no_other(host: str) -> None:
    assert not allows("example.com", host)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("a.example.com", True),
        ("a.b.example.com", True),
        ("A.EXAMPLE.COM", True),
        ("example.com", False),
        ("notexample.com", False),
        ("a.example.com.evil.com", False),
        ("aexample.com", False),
    ],
)
def test_a_wildcard_allows_whole_labels_below_it(host: str, allowed: bool) -> None:
    assert allows("*.example.com", host) is allowed


def test_ports_are_those_of_the_web_unless_one_is_named() -> None:
    assert [port for port in (22, 80, 443, 8080) if allows("example.com", "example.com", port)] == [80, 443]
    assert [port for port in (22, 80, 443, 8080) if allows("example.com:8080", "example.com", port)] == [8080]


@pytest.mark.parametrize(
    ("rule", "host"), [("bücher.example", "xn--bcher-kva.example"), ("ＥＸＡＭＰＬＥ.com", "example.com")]
)
def test_a_name_in_another_script_is_its_idna_form(rule: str, host: str) -> None:
    assert allows(rule, host)


@pytest.mark.parametrize("host", ["ехample.com", "exаmple.com"])
def test_a_name_that_only_looks_like_an_allowed_one_is_another(host: str) -> None:
    assert not allows("example.com", host)


@pytest.mark.parametrize(
    "host",
    [
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "127.1",
        "0177.0.0.1",
        "127.0.0.1.",
        "127.0.0.01",
        "1.2.3.4.5",
        "example.0x1",
        "example.com\0.evil.com",
        "exa\nmple.com",
        "example.com%00",
        "user@example.com",
        "example..com",
        ".example.com",
        "example.com..",
        "-example.com",
        "example-.com",
        "",
        ".",
        "[::1",
        "[fe80::1%eth0]",
        "[1.2.3.4]",
        "::1",
        "a" * 64 + ".com",
        "a." * 127 + "com",
        "*",
        "exa mple.com",
        "example.com/",
    ],
)
def test_what_is_neither_a_name_nor_an_address_in_its_usual_notation_is_refused(host: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  no message of it is promised
        canonical(host)


@pytest.mark.parametrize(("host", "same"), [("[::ffff:127.0.0.1]", "127.0.0.1"), ("[::FFFF:7f00:1]", "127.0.0.1")])
def test_an_ipv4_address_written_as_ipv6_is_that_address(host: str, same: str) -> None:
    assert canonical(host) == canonical(same)
    assert allows("127.0.0.1", host)


def test_an_address_is_allowed_by_that_address_alone() -> None:
    assert allows("[2001:db8::7]:443", "[2001:DB8:0::7]")
    assert not allows("*.0.0.1x", "127.0.0.1")
    assert not allows("example.com", "127.0.0.1")


@pytest.mark.parametrize(
    "rule",
    ["", "*", "*.", "*.127.0.0.1", "https://example.com", "example.com/x", "example.com:0", "example.com:99999",
     "example.com:x", "a@b", "a b", "*.*.com", "exa*mple.com", "example.com:８０"],
)  # fmt: skip
def test_a_rule_that_says_no_host_is_an_error(rule: str) -> None:
    with pytest.raises(OptionsError) as raised:
        HostRule.parse(rule)
    assert raised.value.hint


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1",
        "172.31.255.255", "192.0.0.170", "192.168.1.1", "198.18.0.1", "224.0.0.1", "239.255.255.250", "240.0.0.1",
        "255.255.255.255", "168.63.129.16", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254",
        "ff02::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1", "3fff::1", "fec0::1", "100::1",
    ],
)  # fmt: skip
def test_an_address_that_isnt_of_the_internet_isnt_public(address: str) -> None:
    assert not is_public(parse_address(address))


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "8.8.8.8", "172.32.0.1", "172.15.255.255", "192.167.255.255", "100.128.0.1", "223.255.255.255",
     "2606:4700::1111", "2a00:1450::1", "64:ff9b::808:808", "::ffff:8.8.8.8"],
)  # fmt: skip
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(parse_address(address))


def test_a_port_is_cut_off_where_there_is_one() -> None:
    assert split_port("a.b") == ("a.b", None)
    assert split_port("a.b:1") == ("a.b", 1)
    assert split_port("[::1]") == ("[::1]", None)
    assert split_port("[::1]:2") == ("[::1]", 2)
