import unittest

from basket import Basket


class BasketTest(unittest.TestCase):
    def test_an_empty_basket_costs_nothing(self) -> None:
        self.assertEqual(Basket().total_cents(), 0)

    def test_pieces_of_one_article_add_up(self) -> None:
        basket = Basket()
        basket.add("apple", 50, 3)
        basket.add("apple", 50)
        self.assertEqual(basket.total_cents(), 200)

    def test_ten_pieces_of_one_article_are_a_tenth_off(self) -> None:
        basket = Basket()
        basket.add("apple", 50, 10)
        self.assertEqual(basket.total_cents(), 450)


if __name__ == "__main__":
    unittest.main()
