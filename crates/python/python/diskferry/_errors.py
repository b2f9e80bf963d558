"""The exceptions of diskferry.nbd, in libnbd's form."""

import errno as _numbers
from typing import Optional


class Error(Exception):
    """A call of diskferry.nbd has failed.

    Its arguments are the text and the errno, 0 if there is none.
    """

    __module__ = "diskferry.nbd"

    @property
    def string(self) -> str:
        """The error message; it begins with the name of the call."""
        return str(self.args[0])

    @property
    def errnum(self) -> int:
        """The number of the error, or 0."""
        return int(self.args[1])

    @property
    def errno(self) -> Optional[str]:
        """The name of the error number, such as "EINVAL", or None."""
        return _numbers.errorcode.get(self.args[1])

    def __str__(self) -> str:
        return f"{self.string} ({self.errno})" if self.errno else self.string


class ClosedHandle(ValueError):
    """A method was called on a closed handle."""

    __module__ = "diskferry.nbd"
