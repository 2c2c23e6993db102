def write(*a,**k): pass
