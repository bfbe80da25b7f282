"""Pipeline schedules: their orders of actions, their cost, and the cost of alternatives.

::

    order = orders("1f1b", num_ranks=4, num_micro_batches=16)
    order = orders_from([[(0, SlotKind.FORWARD, 0), …], …])       # as observed, rank by rank
    ideal = replay(order, {SlotKind.FORWARD: 10, SlotKind.BACKWARD: 20})
    ideal.bubble_fraction, ideal.makespan_ns, ideal.in_flight
    best = min(predict(work, 4, candidates), key=lambda prediction: prediction.step_ns)
"""

from distprof.costs.actions import Action, Orders, in_flight_of, orders_from
from distprof.costs.known_schedules import SCHEDULES, Schedule, orders
from distprof.costs.layer_split import split_layers
from distprof.costs.order_replay import Durations, Replay, replay
from distprof.costs.prediction import Candidate, Prediction, StageWork, predict

__all__ = [
    "SCHEDULES",
    "Action",
    "Candidate",
    "Durations",
    "Orders",
    "Prediction",
    "Replay",
    "Schedule",
    "StageWork",
    "in_flight_of",
    "orders",
    "orders_from",
    "predict",
    "replay",
    "split_layers",
]
