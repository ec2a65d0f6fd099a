def report(runs, stages):
    pass
