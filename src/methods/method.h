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

/* Rule that turns a requested p (fraction of elements to remove) or r (removal rate of Eq. 6) into
 * the width of every head. */
typedef enum {
    KVD_WIDTH_RULE_EQ6,        /* equation 6 of the ZACK paper, over singular values */
    KVD_WIDTH_RULE_EQ6_ENERGY, /* equation 6 over squared singular values */
    KVD_WIDTH_RULE_ERROR,      /* table of measured errors */
    KVD_WIDTH_RULE_LOSS,       /* singular values in nats; only for method fisher */
    KVD_N_WIDTH_RULES
} kvd_width_rule;
/*
 * Names of the width rules: "eq6", "eq6-energy", "error", "loss". Rates files use the same names.
 */
extern const char *const kvd_width_rule_name[KVD_N_WIDTH_RULES];

/*
 * Pairs (Q-K, V, or both) that a dims method projects. If it projects one pair only, the other
 * keeps full width, and the projected one has the width that it would have if both were projected.
 */
typedef enum { KVD_CUT_BOTH, KVD_CUT_QK, KVD_CUT_V } kvd_cut;

typedef struct {
    char name[64]; /* "none", "zack", "h2o+kivi": the text without its keys */
    /*
     * Values of all keys but p, r and ranks, such as "h2o.heavy=0.1,h2o.recent=0.1"; empty if there
     * are none.
     */
    char settings[320];
    /*
     * Methods of the layers, tokens and bits axes and makers of projections, with their parameters.
     * This plan is never opened itself: a run copies it, adds dims, type, prompt and seed, and
     * opens the copy.
     */
    kvd_plan plan;
    /* method with spectrum-based projections; NULL: none, or `plan` has a maker or pruner */
    const kvd_dims_method *dims;
    /* Parameters of a dims method. p and r are in [0, 1), and NaN when not given. */
    kvd_cut cut;          /* cut: pairs that are projected; default both */
    double p;             /* p: requested fraction of Q-K and V elements to remove */
    double p_side[2];     /* p.qk and p.v: requested p of each pair; both are given or neither */
    double r;             /* r: removal rate of Eq. 6 */
    double p_low;         /* p_u: requested p of entries at the low level */
    double p_low_side[2]; /* p_u.qk and p_u.v: the same for each pair */
    kvd_width_rule ranks; /* ranks: rule for the widths; default eq6 */
    /* Files of a dims method, chosen by kvd_method_find_files (points.h); borrowed, or NULL. */
    const kvd_spectrum *spectrum;
    const kvd_rates *rates;
    const kvd_error_table *table; /* set only with ranks=error */
    const char *spectrum_path, *rates_path, *table_path;
    /* private */
    const char *usual; /* keys and values that a combination sets unless they are given */
    /*
     * Trade-off of a combination, which must be the last name in the text. Its keys are NAME.KEY.
     */
    const kvd_tradeoff *tradeoff;
} kvd_method;

/*
 * Parses `text` into *m. Fails if two names fill one axis, or if a key is unknown, given twice, out
 * of range or unused by the method. Also fails if p, r and rates per pair are given together, if
 * only one pair has a rate, or for r with ranks=error.
 */
int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err);
/* Returns true if the parameters of the dims method choose its widths: p, p.qk and p.v, or r. */
bool kvd_method_has_point(const kvd_method *m);
/* Returns true if the widths are chosen separately for Q-K and V, with p.qk and p.v. */
bool kvd_method_has_sides(const kvd_method *m);
/* Returns true if entries at the low level have their own rates: p_u, or p_u.qk and p_u.v. */
bool kvd_method_has_low(const kvd_method *m);
const char *kvd_method_name(const kvd_method *m);
bool kvd_method_is_none(const kvd_method *m);

/* Entry of the registry: a method of one axis, or a combination of methods of several axes. */
typedef struct {
    const kvd_method_info *info;
    const char *axis;            /* "tokens"; for a combination its members, "sparsity+hetero" */
    const kvd_dims_method *dims; /* NULL unless the name is a dims method with widths */
    /* true if it saves memory without a method of another axis or a file of its own */
    bool alone;
} kvd_method_entry;
/*
 * Writes the i-th entry of the registry, in the order of --help, to *out. "none" is not listed.
 * Returns false if there is no i-th entry.
 */
bool kvd_method_entry_at(int i, kvd_method_entry *out);

/*
 * Returns the path of the i-th file that a parameter names, such as file=PATH of method projected,
 * or NULL if there is none.
 */
const char *kvd_method_file(const kvd_method *m, int i);
/*
 * Returns true if the value of `key` [length], "KEY" or "NAME.KEY", is text (a path) for some
 * method.
 */
bool kvd_method_is_text_key(const char *key, size_t length);

/*
 * Notes that squared gradients (--fisher) are available. A bits method that can use them then does,
 * unless its parameter was given or the method also fills the dims axis.
 */
void kvd_method_with_fisher(kvd_method *m);
/* Returns true if the method, with its parameters, reads squared gradients (--fisher). */
bool kvd_method_reads_fisher(const kvd_method *m);

/*
 * Parameter that trades stored bytes for quality: p of dims methods, budgets of tokens methods,
 * ranks of layers methods, bits of bits methods.
 */
typedef struct {
    char name[64];      /* key as --method takes it: "p", "h2o.heavy" */
    double most, least; /* ends of a sweep: values that store the most and the fewest bytes */
    bool whole;         /* values are whole numbers */
    bool geometric;     /* steps between the ends are ratios, not differences */
    /* the key is the overall p of a dims method, from which a width rule finds the widths */
    bool p;
    /*
     * Private: key of a second parameter, which follows the first one as at + slope * value, or "".
     */
    char with[64];
    double at, slope;
} kvd_method_tradeoff;

/*
 * Finds the parameter that trades bytes for quality: of the method that is named last if `key` is
 * NULL, else of the method that declares `key` ("KEY" or "NAME.KEY"). Fails if there is none or
 * `key` is another parameter.
 */
int kvd_method_tradeoff_find(const kvd_method *m, const char *key, kvd_method_tradeoff *out,
                             kvd_err *err);
/*
 * Returns the parameter value at fraction `share` of the way from `most` (0) to `least` (1),
 * rounded to six digits. Values of whole-number parameters are rounded to the nearest whole number.
 */
double kvd_method_tradeoff_at(const kvd_method_tradeoff *t, double share);
/*
 * Returns the fraction of the way from `most` to `least` at which the parameter value `value` is.
 */
double kvd_method_tradeoff_share(const kvd_method_tradeoff *t, double value);
/* Returns true if the user set the trade-off parameter in the text of the method. */
bool kvd_method_tradeoff_given(const kvd_method *m, const kvd_method_tradeoff *t);
/*
 * Writes to *out a copy of *m whose trade-off parameter is `value`. The second parameter of the
 * trade-off follows it unless the user gave one.
 */
void kvd_method_tradeoff_set(const kvd_method *m, const kvd_method_tradeoff *t, double value,
                             kvd_method *out);
/* Returns the value of the trade-off parameter in m, or NaN for p if m has widths but no p. */
double kvd_method_tradeoff_value(const kvd_method *m, const kvd_method_tradeoff *t);

#endif
