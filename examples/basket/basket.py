"""A shopping basket that gives a tenth off from ten pieces of one article."""


class Basket:
    def __init__(self) -> None:
        self._lines: dict[str, tuple[int, int]] = {}

    def add(self, article: str, price_cents: int, pieces: int = 1) -> None:
        _, already = self._lines.get(article, (price_cents, 0))
        self._lines[article] = (price_cents, already + pieces)

    def total_cents(self) -> int:
        total = 0
        for price_cents, pieces in self._lines.values():
            line = price_cents * pieces
            if pieces > 10:
                line -= line // 10
            total += line
        return total
