"""Distinguishes a rank that failed from one that only lost its peers.

When one rank dies or hangs, the collectives of the others fail too, with errors that name no rank.
These errors are consequences, never the cause.
"""

from __future__ import annotations

import re

_PEER_LOSS = re.compile(
    # gloo's transport, as torch raises it (RuntimeError or DistBackendError)
    r"Connection (reset|closed|refused|timed out)( by peer)?"
    r"|(Read|Write|Send|Recv) error \[[^\]]*\]"
    r"|Timed out waiting \d+ms for (recv|send)"
    r"|Socket (closed|Timeout)|Broken pipe"
    r"|Application timeout caused pair closure"
    r"|\[[^\]]*gloo/[^\]]*\].*(timed? ?out|closed|reset)"
    # NCCL
    r"|remote process (has terminated|exited)|ncclRemoteError|NCCL remote error"
    r"|Watchdog caught collective operation timeout|Collective operation timeout"
    r"|ncclInProgress.*timeout|NCCL communicator was aborted"
    r"|Some NCCL operations have failed or timed out|Process group watchdog thread terminated"
    # the store, and monitored barriers on ranks other than the missing one
    r"|wait timeout after \d+ms|store.*(timed? ?out|closed)|TCPStore.*(fail|recv|send)"
    r"|DistStoreError|DistNetworkError"
    r"|Detected mismatch between collectives.*missing"
    r"|failed to pass monitoredBarrier",
    re.IGNORECASE | re.DOTALL,
)


def is_peer_loss(exception_text: str) -> bool:
    """Whether the text only says that another rank disappeared or did not answer in time.

    It is the class and message of the exception, for example ``RuntimeError: [...] Connection
    closed by peer [127.0.0.1]:1234``.
    """
    if "[Errno " in exception_text:  # Python's own sockets: a download that broke, not a rank
        return False
    return _PEER_LOSS.search(exception_text) is not None


def has_lost_a_peer(error: BaseException) -> bool:
    """Whether an exception, or one that it was raised from, is the loss of a peer.

    Pipeline schedules, for example, raise an error of their own from that of a stage's collective.
    """
    each: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if each is None:
            return False
        if is_peer_loss(f"{type(each).__name__}: {each}"):
            return True
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return False


_MOST_CAUSES = 20
