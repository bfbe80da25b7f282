"""Errors of stores, translated to a sentence with a fix.

Each package that opens a store raises its own errors, and most of them name neither the file nor a
fix. Only this module knows these errors; it translates them.
"""

from __future__ import annotations

import errno

from distprof.bounds import TooLargeError
from distprof.errors import DistprofError, WebError
from distprof.escape import plain

_NO_CREDENTIALS = {
    "NoCredentialsError",  # botocore
    "PartialCredentialsError",
    "ProfileNotFound",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "SSOTokenLoadError",
    "UnauthorizedSSOTokenError",
    "DefaultCredentialsError",  # google.auth
    "RefreshError",
    "ClientAuthenticationError",  # azure
    "CredentialUnavailableError",
}
_WORDS_OF_NO_CREDENTIALS = ("with credentials", "could not authenticate", "anonymous caller")

_CREDENTIAL_FIXES = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
    "for a public bucket FSSPEC_S3_ANON=true",
    "gs": "run: gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS; "
    "for a public bucket FSSPEC_GS_TOKEN=anon",
    "az": "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with "
    "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}
"""How to provide credentials to the package of each store, by the usual name of the protocol."""

_USUAL_NAMES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}

_MAX_WORDS = 300


class StoreError(OSError):
    """A store, or one of its objects, cannot be used: why, and how the user can fix it."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(errno.EIO, why)
        self.fix = fix

    def __str__(self) -> str:
        """The reason alone: the caller names the file."""
        return self.strerror or ""

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling: the default of ``OSError`` would pass its error number."""
        return type(self), (self.strerror, self.fix)


class ChangedError(StoreError):
    """An object is no longer the one that was listed, or changed while it was read."""

    def __init__(self, why: str = "another version than was listed", fix: str = "") -> None:
        super().__init__(why, fix or "analyse it again once nothing writes to it any more")


class UnusableStoreError(StoreError):
    """The whole store cannot be used: there are no credentials, or it does not respond."""


def explained(url: str, error: BaseException) -> OSError:
    """The error as a sentence; errors that already are one stay unchanged."""
    if isinstance(error, (StoreError, WebError, TooLargeError)):
        return error
    name, words = type(error).__name__, plain(" ".join(str(error).split()))[:_MAX_WORDS]
    protocol = url.partition("://")[0]
    if name in _NO_CREDENTIALS or any(sign in words.lower() for sign in _WORDS_OF_NO_CREDENTIALS):
        fix = _CREDENTIAL_FIXES.get(_USUAL_NAMES.get(protocol, protocol), "")
        return UnusableStoreError(f"no credentials for {protocol}:// ({words or name})", fix)
    if isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
        return StoreError(
            f"access denied ({words or name})",
            "check which credentials are used, and that they allow listing and reading it",
        )
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "no object with this name", url)
    if isinstance(error, TimeoutError) or "Timeout" in name or "Connect" in name:
        return UnusableStoreError(f"no answer ({words or name})", "check the address, then retry")
    return StoreError(f"{name}: {words}" if words else name)


def is_final(error: BaseException) -> bool:
    """Whether retrying is useless."""
    if isinstance(error, (DistprofError, PermissionError, FileNotFoundError, IsADirectoryError)):
        return True
    if (
        isinstance(error, (ChangedError, UnusableStoreError))
        or type(error).__name__ in _NO_CREDENTIALS
    ):
        return True
    return isinstance(error, OSError) and error.errno == errno.EINVAL
