"""Compares HDF5 files in the tests of kvdim-collect; prints nothing when all is well.

tool_compare_h5.py same A B [C D]               every dataset of A and B (and C and D) bit for bit the same
tool_compare_h5.py oracle ORACLE.h5 DUMP.h5     values by Transformers, to 1e-5 of their norm
tool_compare_h5.py rounded F32.h5 F16.h5        numpy's rounding of the one is the other
tool_compare_h5.py layers ALL.h5 PART.h5        PART holds layers first_layer .. of ALL
tool_compare_h5.py moments DUMP.h5 MOMENTS.h5   sums of the dump's rows
tool_compare_h5.py tokens DUMP.h5 SEQ_LEN       ids, sequences and positions of the dump fit together
tool_compare_h5.py described FILE.h5            every dataset has its attributes
tool_compare_h5.py near A B TOL                 integers the same; sums to TOL of the root of their two diagonal entries, other
                                                numbers to TOL of the norm of their layer and head
tool_compare_h5.py spectra A B TOL              singular values to TOL of the largest of their head
"""
import sys
import h5py, numpy as np

def datasets(f):
    found = {}
    f.visititems(lambda n, o: found.__setitem__(n, o) if isinstance(o, h5py.Dataset) and not h5py.h5ds.is_scale(o.id) else None)
    return found

def fail(*what):
    print(*what)
    sys.exit(1)

def same(a, b, *more):
    x, y = datasets(a), datasets(b)
    if x.keys() != y.keys():
        fail("datasets", sorted(x), sorted(y))
    for n in x:
        if x[n].shape != y[n].shape or x[n].dtype != y[n].dtype or x[n][()].tobytes() != y[n][()].tobytes():
            fail(n, "differs")
    if more:
        same(*more)

def oracle(o, a):
    for n in o:
        want, got = o[n][()].astype("f8"), a[n][()].astype("f8")[list(o.attrs["layers"])]
        if want.shape != got.shape or not np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want):
            fail(n, want.shape, got.shape, np.linalg.norm(got - want) / np.linalg.norm(want))

def rounded(a, b):
    for n, x in datasets(a).items():
        if n.startswith("checksums"):
            continue
        want = x[()] if n.startswith("tokens") else x[()].astype("f2")
        if want.tobytes() != b[n][()].tobytes():
            fail(n, "is not rounded as numpy rounds")

def layers(a, b):
    first = b.attrs["first_layer"]
    for n, x in datasets(b).items():
        if n.startswith("checksums/tokens"):
            continue
        want = a[n][()] if n.startswith("tokens") else a[n][first:first + x.shape[0]]
        if want.tobytes() != x[()].tobytes():
            fail(n, "differs")

def moments(a, m):
    names = [n for n in ("q", "k", "v", "q_pre", "k_pre") if n in a]
    if m["n_tokens"][()] != a["tokens/id"].shape[0]:
        fail("n_tokens", m["n_tokens"][()])
    for n in names + ["w_o", "w_v"]:
        x = a[n][()].astype("f8")
        if n.startswith("w"):
            x = x.swapaxes(-1, -2)
        want, got = np.einsum("lhti,lhtj->lhij", x, x), m["gram/" + n][()]
        if want.shape != got.shape or np.abs(got - want).max() > 1e-10 * np.abs(want).max():
            fail(n, want.shape, got.shape, np.abs(got - want).max())

def tokens(a, seq_len):
    sequence, position = a["tokens/sequence"][()], a["tokens/position"][()]
    starts = np.flatnonzero(position == 0)
    if sequence[0] != 0 or not np.array_equal(sequence[starts], np.arange(len(starts))):
        fail("sequence")
    lengths = np.diff(np.append(starts, len(position)))
    if lengths.max() > int(seq_len) or lengths.min() < 2 or len(starts) != a.attrs["n_sequences"]:
        fail("lengths", lengths)
    if not np.array_equal(position, np.concatenate([np.arange(n) for n in lengths])):
        fail("position")

def described(a):
    for n in ("schema", "schema_version", "title", "history", "complete", "label", "corpus_hash"):
        if n not in a.attrs:
            fail("no attribute", n)
    for n in ("name", "hash", "n_layers", "rope_theta"):
        if n not in a["model"].attrs:
            fail("no /model", n)
    if "seq-len" not in a["parameters"].attrs or "hash" not in a["provenance/inputs/0"].attrs:
        fail("no parameters or no inputs")
    for n, x in datasets(a).items():
        if not x.attrs["long_name"] or not x.attrs["units"] or any(not d.label for d in x.dims):
            fail(n, "is not described")
        rope = x.attrs.get("rope", b"")
        rope = rope.decode() if isinstance(rope, bytes) else rope
        want = "" if n.startswith("checksums") or n.split("/")[-1][0] not in "qk" else "before" if n.endswith("_pre") else "after"
        if rope != want:
            fail(n, "rope is", rope)

def near(a, b, tolerance):
    x, y = datasets(a), datasets(b)
    if x.keys() != y.keys():
        fail("datasets", sorted(x), sorted(y))
    for n in x:
        want, got = x[n][()], y[n][()]
        if want.shape != got.shape:
            fail(n, want.shape, got.shape)
        if n.startswith("checksums"):
            continue
        if want.dtype.kind in "iu":
            off = float((want != got).any())
        elif n.startswith("gram/"):
            root = np.sqrt(np.einsum("lhii->lhi", want))
            off = (np.abs(got - want) / (root[..., None] * root[..., None, :])).max()
        else:
            want, got = want.astype("f8"), got.astype("f8")
            off = (np.linalg.norm(got - want, axis=(-2, -1)) / np.linalg.norm(want, axis=(-2, -1))).max()
        if not off <= float(tolerance):
            fail(n, "is", off, "apart")

def spectra(a, b, tolerance):
    names = [n for n in datasets(a) if n.endswith("/sigma")]
    if not names:
        fail("no sigma")
    for n in names:
        want, got = a[n][()], b[n][()]
        off = (np.abs(got - want).max(axis=-1) / want.max(axis=-1)).max()
        if not off <= float(tolerance):
            fail(n, "is", off, "apart")

args = [p if p.replace(".", "").replace("e-", "").isdigit() else h5py.File(p, "r") for p in sys.argv[2:]]
globals()[sys.argv[1]](*args)
