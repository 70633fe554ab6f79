def write_report(r, f): pass
