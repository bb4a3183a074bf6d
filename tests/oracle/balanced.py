"""Writes balanced.h: a balanced projection of a small pair by NumPy (eigh and svd), for test_pairs.c."""
import numpy as np

rng = np.random.default_rng(5)
d = 6
Q = rng.standard_normal((40, d)) @ rng.standard_normal((d, d))
K = rng.standard_normal((30, d)) @ rng.standard_normal((d, d))
cl, cr = Q.T @ Q, K.T @ K


def root(c, power):
    w, z = np.linalg.eigh(c)
    return (z * w**power) @ z.T


u, s, vt = np.linalg.svd(root(cl, 0.5) @ root(cr, 0.5))
left, right = root(cl, -0.5) @ u, root(cl, 0.5) @ u
sign = np.sign(left[np.abs(left).argmax(axis=0), np.arange(d)])
left, right = left * sign, right * sign


def show(name, x):
    rows = [", ".join(repr(float(v)) for v in row) for row in np.atleast_2d(x)]
    print("static const double %s[] = {%s};" % (name, ",\n    ".join(rows)))


print("/* Made by tests/oracle/balanced.py with NumPy %s. */" % np.__version__)
print("enum { ORACLE_D = %d };" % d)
show("oracle_cl", (cl + cl.T) / 2)
show("oracle_cr", (cr + cr.T) / 2)
show("oracle_sigma", s)
show("oracle_left", left)
show("oracle_right", right)
