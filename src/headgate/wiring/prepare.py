"""Makes the faster form of the bundled weights ahead of the first start, as when a container image is built.

python -m headgate.wiring.prepare
"""

import os

from headgate.wiring.common import bundled_model


def main() -> None:
    from headgate.engine.runner.weights import make, place

    source = bundled_model()
    path = place(source, os.environ)
    make(source, path)
    print(path)


if __name__ == "__main__":
    main()
