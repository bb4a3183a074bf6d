/*
 * A method as users type it: "zack", "zack,p=0.5,ranks=error",
 * "h2o+zack+kivi,heavy=0.2,p=0.5,bits=4". The text is NAME[+NAME]...[,KEY=VALUE]...; a key belongs
 * to the member that declares it, and is written NAME.KEY where several members declare it. Key
 * keep_layers=FIRST:LAST, which every method has, keeps the cache of the first FIRST and the last
 * LAST layers whole.
 *
 * method.c holds the registry of names, parses the text and checks which members fit together;
 * method_keys.c sets and checks keys, and knows which key of a method trades bytes for quality.
 */
#ifndef KVD_METHODS_METHOD_H
#define KVD_METHODS_METHOD_H

#include "formats/error_table.h"
#include "methods/plan.h"

/* Rule that turns a wanted p or r into the width of every head. */
typedef enum {
    KVD_WIDTH_RULE_EQ6,        /* Eq. 6 over singular values */
    KVD_WIDTH_RULE_EQ6_ENERGY, /* Eq. 6 over their squares */
    KVD_WIDTH_RULE_ERROR,      /* table of measured errors */
    KVD_WIDTH_RULE_LOSS,       /* singular values in nats, of method fisher alone */
    KVD_N_WIDTH_RULES
} kvd_width_rule;
/* "eq6", "eq6-energy", "error", "loss"; rates files use the same names. */
extern const char *const kvd_width_rule_name[KVD_N_WIDTH_RULES];

/*
 * Sides that a dims method cuts. The side that is not cut stays whole; the other side has the width
 * that it would have if both were cut.
 */
typedef enum { KVD_CUT_BOTH, KVD_CUT_QK, KVD_CUT_V } kvd_cut;

typedef struct {
    char name[64]; /* "none", "zack", "h2o+kivi": the text without its keys */
    /* Values of all keys but p, r and ranks, "h2o.heavy=0.1,h2o.recent=0.1"; empty for none. */
    char settings[320];
    /*
     * Members of the layers, tokens and bits axes and makers of projections, with the values of
     * their keys. It is never open: a run copies it, adds dims, type, prompt and seed, and opens
     * the copy.
     */
    kvd_plan plan;
    const kvd_dims_method *dims; /* NULL: whole heads, or a maker or pruner in the plan */
    /* Keys of dims. p and r are in [0, 1) and NaN when not given. */
    kvd_cut cut;          /* cut: sides that are cut; default both */
    double p;             /* p: wanted overall p of both sides */
    double p_side[2];     /* p.qk and p.v: wanted p of each side; both are given or neither */
    double r;             /* r: removal rate of Eq. 6 */
    double p_low;         /* p_u: wanted overall p of entries at the low level */
    double p_low_side[2]; /* p_u.qk and p_u.v: wanted p of each side of entries at the low level */
    kvd_width_rule ranks; /* ranks: default eq6 */
    /* Files of a dims method, which kvd_method_find_files chooses (points.h). Borrowed; or NULL. */
    const kvd_spectrum *spectrum;
    const kvd_rates *rates;
    const kvd_error_table *table; /* set only with ranks=error */
    const char *spectrum_path, *rates_path, *table_path;
    /* private */
    const char *usual; /* keys and values that a combination sets unless they are given */
    /* trade-off of a combination, which is named last; its keys are NAME.KEY */
    const kvd_tradeoff *tradeoff;
} kvd_method;

/*
 * Parses `text` into *m. Fails on names that fill one axis twice, unknown keys, keys given twice or
 * out of their range, p, r and rates per side given together, a rate for one side alone, r with
 * ranks=error, and keys that the method has no use for.
 */
int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err);
/* Returns true if keys of dims choose a point: p, p.qk and p.v, or r. */
bool kvd_method_has_point(const kvd_method *m);
/* Returns true if the point is chosen side by side, with p.qk and p.v. */
bool kvd_method_has_sides(const kvd_method *m);
/* Returns true if entries at the low level have rates of their own: p_u, or p_u.qk and p_u.v. */
bool kvd_method_has_low(const kvd_method *m);
const char *kvd_method_name(const kvd_method *m);
bool kvd_method_is_none(const kvd_method *m);

/* A name of the registry: a member of one axis, or a combination of several. */
typedef struct {
    const kvd_method_info *info;
    const char *axis;            /* "tokens"; of a combination its members, "sparsity+hetero" */
    const kvd_dims_method *dims; /* NULL unless the name is a dims method with widths */
    bool alone; /* stores less without a method of another axis or a file of its own */
} kvd_method_entry;
/*
 * Writes the i-th name of the registry, in the order of --help. "none" is not listed. Returns false
 * if there is none.
 */
bool kvd_method_entry_at(int i, kvd_method_entry *out);

/*
 * Returns the i-th file that keys of the method name, such as file=PATH of projected; NULL: there
 * is none.
 */
const char *kvd_method_file(const kvd_method *m, int i);
/* Returns true if `key` [length], "KEY" or "NAME.KEY", is the text key of some method. */
bool kvd_method_is_text_key(const char *key, size_t length);

/*
 * Tells the method that squared gradients are there (--fisher): a bits method that can use them
 * does, unless its key was given or the method also fills the dims axis.
 */
void kvd_method_with_fisher(kvd_method *m);
/* Returns true if the method, with the values of its keys, would read squared gradients. */
bool kvd_method_reads_fisher(const kvd_method *m);

/*
 * ---- the key that trades bytes for quality -----------------------------------------------------
 *
 * p of dims, budgets of tokens, ranks of layers, bits.
 */
typedef struct {
    char name[64];      /* key as --method takes it: "p", "h2o.heavy" */
    double most, least; /* ends of a sweep: values that store the most and the fewest bytes */
    bool whole;         /* values are whole numbers */
    bool geometric;     /* steps between the ends are ratios, not differences */
    bool p;             /* the key is overall p of dims, which the rule of widths resolves */
    /* private: a second key that follows the first one as at + slope * value, or "" */
    char with[64];
    double at, slope;
} kvd_method_tradeoff;

/*
 * Finds the key of the member or combination that is named last if `key` is NULL, else of the
 * member that declares `key` ("KEY" or "NAME.KEY"). Fails for none, and for other keys.
 */
int kvd_method_tradeoff_find(const kvd_method *m, const char *key, kvd_method_tradeoff *out,
                             kvd_err *err);
/*
 * Returns the value at a fraction of the way from `most` (0) to `least` (1), rounded to six digits;
 * whole values are rounded to the nearest whole number.
 */
double kvd_method_tradeoff_at(const kvd_method_tradeoff *t, double share);
/* Returns the fraction of the way from `most` to `least` at which `value` is. */
double kvd_method_tradeoff_share(const kvd_method_tradeoff *t, double value);
/* Returns true if the text of the method gave the key. */
bool kvd_method_tradeoff_given(const kvd_method *m, const kvd_method_tradeoff *t);
/*
 * Writes *m with the key at `value` to *out. The second key of the trade-off follows unless it was
 * given.
 */
void kvd_method_tradeoff_set(const kvd_method *m, const kvd_method_tradeoff *t, double value,
                             kvd_method *out);
/* Returns the value that m has; NaN for p where widths alone decide it. */
double kvd_method_tradeoff_value(const kvd_method *m, const kvd_method_tradeoff *t);

#endif
