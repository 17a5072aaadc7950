"""``python -m greedw_cli`` is the same as ``greedw``, where the script is not on the path."""

from greedw_cli.app import main

if __name__ == "__main__":
    main()
