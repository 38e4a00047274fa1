"""Horovod's interface, for scripts that were written for it.

    import shouter.horovod.torch as hvd       # was: import horovod.torch as hvd
    import shouter.horovod.tensorflow as hvd  # was: import horovod.tensorflow as hvd

The rest of a script stays as it is; it is started by `python -m shouter run -n 4 train.py`, or another launcher. docs/horovod.md says
what there is, and what is different.
"""
