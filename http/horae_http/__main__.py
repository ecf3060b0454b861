"""`python -m horae_http` is the command `horae`, for those who start it by the interpreter (`dev.py` does)."""

from horae_http.cli import main

if __name__ == "__main__":
    main()
