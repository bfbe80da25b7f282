"""Layouts of a training job before it is launched: what fits, what it costs, which is fastest.

::

    question = Question(model=preset("llama3-70b"), cluster=cluster, batch=512, sequence=8192)
    plan = make_plan(question)
    plan.best[0].layout, plan.best[0].step_ns
"""
