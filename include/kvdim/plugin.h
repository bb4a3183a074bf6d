/*
 * Plugin interface of kvdim: methods that shorten a KV cache, in a shared library that you write.
 *
 *     cc -shared -fPIC -I/usr/local/include mine.c -o mine.so
 *     kvdim-eval MODEL --text book.txt --prompt 128 --plugin mine.so --method mine,key=0.5 -o a.h5
 *
 * A plugin needs nothing of kvdim but these headers: no HDF5, no BLAS, no library of kvdim. It
 * defines kvdim_plugin_v1, which returns a table of methods. There is one header for each axis of
 * the cache that a method can shorten:
 *
 *     kvdim/plugin_tokens.h   tokens that stay in the cache, and tokens that a decode step reads
 *     kvdim/plugin_bits.h     bits with which each number of K and V is stored
 *     kvdim/plugin_dims.h     dimensions of a head (the subspace) that are stored
 *     kvdim/plugin_layers.h   layers that share the K and V of a prompt
 *
 * Names and parameters. `--method NAME,KEY=VALUE` works as with the methods of kvdim, where KEY is
 * the name of a parameter. So do NAME+OTHER, KEY=A/B/C, --list-methods, --sweep and --target. A
 * method name that kvdim or another plugin already has is refused.
 *
 * Ownership. kvdim borrows the table and all that it points to for the whole run, and never unloads
 * the library. Arrays that a function receives belong to kvdim and are valid during the call.
 *
 * Threads. kvdim calls kvdim_plugin_v1 and `open` on one thread. All other functions may be called
 * by several threads at the same time, for different heads and sequences, with the same `self`.
 *
 * Errors. A function that returns int returns 0, or another number if it fails. A failing function
 * writes its reason to `error`, KVDIM_ERROR_BYTES bytes: one line with a final zero byte. The run
 * then ends with status 1.
 *
 * Checks. kvdim checks the results of every function of a plugin. If a result breaks the rules
 * below (a count beyond an array, a NaN, a write beyond an array), the run ends with status 2. One
 * line then names the file, the method and the function.
 */
#ifndef KVDIM_PLUGIN_H
#define KVDIM_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the plugin interface. kvdim refuses a plugin whose table has another version. */
#define KVDIM_PLUGIN_ABI 1

enum { KVDIM_ERROR_BYTES = 256 };

/* Axes of the KV cache that a method can shorten: values of kvdim_method.axis. */
enum { KVDIM_AXIS_TOKENS = 1, KVDIM_AXIS_BITS = 2, KVDIM_AXIS_DIMS = 3, KVDIM_AXIS_LAYERS = 4 };

/* Data that a method asks kvdim for: bits of kvdim_method.needs. */
enum {
    /* Sums of the attention probabilities that each token of the prompt received. */
    KVDIM_NEEDS_PROBABILITIES = 1,
    /*
     * Q, K and V of a calibration text (--calibration). Only a method that removes dimensions of
     * heads (KVDIM_AXIS_DIMS) may ask for them.
     */
    KVDIM_NEEDS_CALIBRATION = 2
};

/* Values of a field named `side`, which tells whether a block holds keys or values. */
enum { KVDIM_SIDE_KEYS = 0, KVDIM_SIDE_VALUES = 1 };

/*
 * Parameter of a method, such as `budget` in `--method mine,budget=0.5`. Its value is always a
 * number.
 */
typedef struct kvdim_key {
    /* Name of the parameter: 1 .. 16 letters a-z, digits and '_', a letter first. */
    const char *name;
    double value;     /* default value; NaN: the user must give the parameter a value */
    double low, high; /* range of allowed values, ends included */
    int32_t whole;    /* 1: the value must be a whole number */
    const char *help; /* one line of explanation, printed by --list-methods */
} kvdim_key;

/*
 * Shape of the model, as kvdim passes it to plugin functions. A function must read only its first
 * struct_size bytes.
 */
typedef struct kvdim_model {
    uint32_t struct_size;
    /*
     * Numbers of layers, query heads and KV heads. Query head h reads KV head
     * h / (n_heads / n_kv_heads).
     */
    int32_t n_layers, n_heads, n_kv_heads;
    int32_t d_head, d_model;
    uint64_t seed; /* seed given by --seed; methods that draw random numbers must draw from it */
} kvdim_model;

/*
 * Fields that all methods have, whichever axis of the cache they shorten. This structure is the
 * first member of kvdim_tokens_method, kvdim_bits_method, kvdim_dims_method and
 * kvdim_layers_method. Unused fields must be 0 or NULL.
 */
typedef struct kvdim_method {
    /*
     * Size in bytes of the structure in which this structure is the first member, such as
     * sizeof(kvdim_tokens_method).
     */
    uint32_t struct_size;
    uint32_t axis;       /* axis of the cache that the method shortens: one of KVDIM_AXIS_... */
    const char *name;    /* name in --method: 1 .. 24 letters a-z, digits and '_', a letter first */
    const char *summary; /* one line of explanation, printed by --list-methods */
    /* Parameters of the method, an array of n_keys. Functions receive the values in this order. */
    const kvdim_key *key;
    uint32_t n_keys; /* number of parameters, at most 8 */
    /* Data that kvdim must pass to the functions: a sum of KVDIM_NEEDS_... bits, or 0. */
    uint32_t needs;
    /*
     * Name of the parameter that --sweep and --target vary, from the value sweep_most, which
     * stores the most bytes, to sweep_least, which stores the fewest. NULL: no parameter trades
     * bytes for quality. If sweep_ratio is 1, the steps between the values are equal ratios,
     * otherwise equal differences.
     */
    const char *sweep_key;
    double sweep_most, sweep_least;
    int32_t sweep_ratio;
} kvdim_method;

typedef struct kvdim_plugin {
    /* Version of the interface that the plugin was compiled for: KVDIM_PLUGIN_ABI. */
    uint32_t abi_version;
    uint32_t struct_size; /* size of this structure, sizeof(kvdim_plugin) */
    /* Version of the plugin itself, which results record; at most 40 characters. */
    const char *version;
    uint32_t n_methods;                /* number of methods in the plugin, 1 .. 32 */
    const kvdim_method *const *method; /* pointers to the methods of the plugin, [n_methods] */
} kvdim_plugin;

/* Returns the plugin's table of methods. Every plugin must define this function. */
const kvdim_plugin *kvdim_plugin_v1(void);

#ifdef __cplusplus
}
#endif
#endif
