/* The registry: names users type, and the axes they fill. */
#ifndef KVD_METHODS_PRESETS_H
#define KVD_METHODS_PRESETS_H

#include "methods/plan.h"

/* Where widths come from: Eq. 6 over singular values, over their squares, or a table of measured error. */
typedef enum { KVD_RANKS_EQ6, KVD_RANKS_EQ6_ENERGY, KVD_RANKS_ERROR, KVD_RANKS_LOSS, KVD_N_RANKS } kvd_ranks;
extern const char *const
    kvd_ranks_name[KVD_N_RANKS]; /* "eq6", "eq6-energy", "error", "loss": also the rule of rates files */

/* What a dims method cuts: one of the two leaves the other whole, at the widths that both would have. */
typedef enum { KVD_CUT_BOTH, KVD_CUT_QK, KVD_CUT_V } kvd_cut;

/*
 * "zack", "zack,p=0.5,ranks=error", "h2o+zack+kivi,heavy=0.2,p=0.5,bits=4": NAME[+NAME]...[,key=value]... A key belongs to the
 * method that has it; one that several have is written NAME.key.
 */
typedef struct {
    char name[64];        /* "none", "zack", "h2o+kivi": without keys                */
    char settings[320];   /* values of all keys but p, r, ranks: "heavy=0.1,recent=0.1"; empty for none */
    kvd_cut cut;          /* key cut of dims: both (when not given), qk or v */
    const char *usual;    /* keys and values of a preset, for those that are not given; NULL: none */
    const kvd_rate *rate; /* of a preset that is named last, with keys NAME.key; NULL: that of the member */
    const kvd_layers_method *layers;
    const kvd_tokens_method *tokens, *levels; /* levels: as in a plan */
    const kvd_dims_method *dims;              /* NULL: whole heads, or a maker                */
    const kvd_dims_maker *maker;              /* makes its projections itself; NULL: none      */
    const kvd_channels_method *channels;      /* prunes channels; NULL: none */
    const kvd_bits_method *bits;
    kvd_values layers_values, tokens_values, levels_values, maker_values, channels_values, bits_values;
    double p;             /* key p of dims: wanted overall p; NaN when not given  */
    double p_low;         /* key p_u of dims: the same of entries at the low level; NaN: as the others */
    double p_side[2];     /* keys p.qk and p.v: p of each pair by itself; both or neither */
    double p_low_side[2]; /* keys p_u.qk and p_u.v: the same of entries at the low level */
    double r;             /* key r of dims: removal rate; NaN when not given      */
    kvd_ranks ranks;      /* key ranks of dims; eq6 when not given                */
} kvd_method;

/*
 * All p and r in [0, 1). Refuses names that fill one axis twice, p, r and the rates of the two pairs together, a rate of one pair without
 * the other's, keys given twice or beyond their range, r with ranks=error, and what a method has no use for (none takes no key; uniform
 * neither r nor ranks nor a rate for each pair).
 */
int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err);
/* Whether keys of dims say which point is meant (p, p.qk and p.v, or r); and whether they say it pair by pair. */
bool kvd_method_has_point(const kvd_method *m);
bool kvd_method_has_sides(const kvd_method *m);
bool kvd_method_has_low(const kvd_method *m); /* p_u, or p_u.qk and p_u.v */
const char *kvd_method_name(const kvd_method *m);
bool kvd_method_is_none(const kvd_method *m);

/* Number of dims methods and the i-th, for --help and docs. */
int kvd_method_count(void);
const kvd_dims_method *kvd_method_at(int i);

/* Everything that can be typed but none, for --help and docs: the i-th name, its axis and summary, and its keys (ending with key
 * NULL; NULL for dims, whose keys are p, p.qk, p.v, r, ranks and cut, and for names that stand for several). false beyond the last. */
typedef struct {
    const char *name, *axis, *summary;
    const kvd_parameter *parameter;
    bool alone; /* it stores less without a method of another axis */
} kvd_preset;
bool kvd_preset_at(int i, kvd_preset *out);

/* Squared gradients are there (--fisher): a bits method that can use them does, unless its key was given or a method of the dims axis
 * stands in front of it. */
void kvd_method_with_fisher(kvd_method *m);
/* Whether it would read squared gradients, as its keys are. */
bool kvd_method_reads_fisher(const kvd_method *m);
/* The union of what its members need (kvd_needs). */
unsigned kvd_method_needs(const kvd_method *m);

/* The axes but dims of a plan: what belongs to the method alone. */
void kvd_method_plan(const kvd_method *m, kvd_plan *plan);

/*
 * ---- the key that trades bytes for quality: p of dims, budgets of tokens, ranks of layers, bits -------------------------
 */
typedef struct {
    char name[64]; /* "p", "h2o.heavy": as --method takes it                                            */
    double most,
        least;  /* values that store most and least of what is worth a look                          */
    bool whole; /* whole numbers only                                                                */
    bool geometric;
    bool p; /* overall p of the dims axis, whose value is settled by widths                      */
    /* private */
    char with[64];
    double at, slope;
} kvd_method_rate;

/* key NULL: of the preset or member that is named last; else "key" or "NAME.key", a key that its method declares. Fails for none. */
int kvd_method_rate_find(const kvd_method *m, const char *key, kvd_method_rate *out, kvd_err *err);
/* The value at a share of the way from most (0) to least (1); of whole keys the nearest whole one. */
double kvd_method_rate_at(const kvd_method_rate *r, double share);
/* The share of the way at which a value lies. */
double kvd_method_rate_share(const kvd_method_rate *r, double value);
/* Whether the method says what the key is. */
bool kvd_method_rate_given(const kvd_method *m, const kvd_method_rate *r);
/* *out is *m with the key at that value, and the key that goes with it where it was not given. */
void kvd_method_set_rate(const kvd_method *m, const kvd_method_rate *r, double value, kvd_method *out);
/* The value that m has; NaN where it is not known before widths are. */
double kvd_method_rate_value(const kvd_method *m, const kvd_method_rate *r);

#endif
