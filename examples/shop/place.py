"""Places orders: ``python place.py [COUNT]``. Every third order is amended in a later transaction."""

from __future__ import annotations

import sys

from database import connect, execute
from shop import TABLES, amend_order, place_order

from relevo.settings import load


def main(count: int) -> None:
    connection = connect(load().database.url)
    for table in TABLES:
        execute(connection, table)
    ((last,),) = execute(connection, "select coalesce(max(order_id), 0) from shop_order")
    connection.commit()
    for order_id in range(int(last) + 1, int(last) + 1 + count):
        place_order(connection, order_id, total_cents=1000 + order_id % 900)
        connection.commit()
        if order_id % 3 == 0:
            amend_order(connection, order_id, added_cents=250)
            connection.commit()
    connection.close()
    print(f"placed {count} orders")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
