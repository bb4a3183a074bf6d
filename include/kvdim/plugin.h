/* Plugin interface of kvdim. A plugin is a shared library that you write, with methods that make a
 * KV cache smaller.
 *
 *   cc -shared -fPIC -I/usr/local/include mine.c -o mine.so
 *   kvdim-eval MODEL --text book.txt --prompt 128 --plugin mine.so --method mine,key=0.5 -o a.h5
 *
 * A plugin needs only these headers. It must define kvdim_plugin_v1, which returns a table of
 * methods (macro KVDIM_PLUGIN). Each axis along which a method can shrink the cache has a header:
 *
 * - kvdim/plugin_tokens.h: methods that store or read fewer tokens
 * - kvdim/plugin_bits.h: methods that store each number of K and V with fewer bits
 * - kvdim/plugin_dims.h: methods that store fewer dimensions of each head
 * - kvdim/plugin_layers.h: methods that store the K and V of several layers together
 *
 * Names. kvdim refuses a method name that it or another plugin already uses.
 *
 * Ownership. The plugin owns the table and all that it points to, and must not change them during
 * the run. The library is never unloaded. Arrays that a function receives belong to kvdim and are
 * valid only during the call.
 *
 * Threads. kvdim_plugin_v1 and `open` run on one thread. Other functions may run in several
 * threads, for different heads and sequences, with the same `self`.
 *
 * Errors. A function that returns int returns 0 on success. On failure it writes one line with a
 * final zero byte to `error` [KVDIM_ERROR_BYTES], and returns another number. Then the run ends
 * with status 1.
 *
 * Checks. If a result breaks the rules below (a count beyond an array, a NaN, a write beyond an
 * array), the run ends with status 2. */
#ifndef KVDIM_PLUGIN_H
#define KVDIM_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the plugin interface. kvdim refuses plugins that were built for another version. */
#define KVDIM_PLUGIN_ABI 1

enum { KVDIM_ERROR_BYTES = 256 };

/* Axis that a method shrinks: tokens, bits per number, dimensions per head, or layers. */
enum { KVDIM_AXIS_TOKENS = 1, KVDIM_AXIS_BITS = 2, KVDIM_AXIS_DIMS = 3, KVDIM_AXIS_LAYERS = 4 };

/* Data that a method asks kvdim for, as bits of kvdim_method.needs. */
enum {
    /* Attention probabilities that each token received, summed */
    KVDIM_NEEDS_PROBABILITIES = 1,
    /* Q, K and V of a calibration text (--calibration); only for methods that remove dimensions
     * (KVDIM_AXIS_DIMS) */
    KVDIM_NEEDS_CALIBRATION = 2,
    /* Random numbers: results depend on kvdim_model.seed, and --seeds evaluates several seeds. */
    KVDIM_NEEDS_SEED = 4
};

enum { KVDIM_SIDE_KEYS = 0, KVDIM_SIDE_VALUES = 1 };

/* Parameter of a method, such as `budget` in `--method mine,budget=0.5`. */
typedef struct kvdim_key {
    const char *name; /* 1 to 16 characters a-z, 0-9 and '_', a letter first */
    double value;     /* default; if NaN, the user must give a value */
    double low, high; /* range of allowed values, ends included */
    int32_t whole;    /* 1: the value must be a whole number */
    const char *help; /* one line, printed by --list-methods */
} kvdim_key;

/* Shape of the model, filled in by kvdim. struct_size: size of this structure in the running
 * version of kvdim. */
typedef struct kvdim_model {
    uint32_t struct_size;
    /* Numbers of layers, query heads and KV heads. Query head h reads KV head h / (n_heads /
     * n_kv_heads). */
    int32_t n_layers, n_heads, n_kv_heads;
    int32_t d_head, d_model;
    /* seed of random numbers, given by option --seed; methods that use it set KVDIM_NEEDS_SEED */
    uint64_t seed;
} kvdim_model;

/* Description of a compression method. It is the first member of kvdim_tokens_method,
 * kvdim_bits_method and the other structures for methods. Unused fields are 0 or NULL. */
typedef struct kvdim_method {
    /* size of the enclosing structure, such as sizeof(kvdim_tokens_method) */
    uint32_t struct_size;
    uint32_t axis;       /* one of KVDIM_AXIS_... */
    const char *name;    /* name in --method: 1 to 24 characters a-z, 0-9 and '_', a letter first */
    const char *summary; /* one line, printed by --list-methods */
    const kvdim_key *key; /* Parameters, [n_keys]. Functions receive their values in this order. */
    uint32_t n_keys;      /* at most 8 */
    uint32_t needs;       /* Sum of KVDIM_NEEDS_... bits, or 0. */
    /* Name of the parameter that sets the size of the cache, or NULL. Options --sweep and --target
     * vary this parameter from `sweep_most` (largest cache) to `sweep_least` (smallest cache). Even
     * at `sweep_most`, the cache must be smaller than the uncompressed cache. If `sweep_ratio` is
     * 1, the values form a geometric sequence. */
    const char *sweep_key;
    double sweep_most, sweep_least;
    int32_t sweep_ratio;
} kvdim_method;

typedef struct kvdim_plugin {
    uint32_t abi_version; /* set by the plugin to KVDIM_PLUGIN_ABI */
    uint32_t struct_size; /* sizeof(kvdim_plugin) */
    /* version of the plugin, at most 40 characters */
    const char *version;
    uint32_t n_methods;                /* 1 .. 32 */
    const kvdim_method *const *method; /* [n_methods] */
} kvdim_plugin;

/* Returns the plugin's version and methods. Every plugin must define this function. */
const kvdim_plugin *kvdim_plugin_v1(void);

/* Defines kvdim_plugin_v1 for a plugin with the version text `plugin_version` and 1 .. 32 methods,
 * given by pointers to static structures. */
#define KVDIM_PLUGIN(plugin_version, ...)                                                          \
    const kvdim_plugin *kvdim_plugin_v1(void)                                                      \
    {                                                                                              \
        static const kvdim_method *const methods[] = {__VA_ARGS__};                                \
        static const kvdim_plugin plugin = {KVDIM_PLUGIN_ABI, sizeof plugin, plugin_version,       \
                                            sizeof methods / sizeof *methods, methods};            \
        return &plugin;                                                                            \
    }

#ifdef __cplusplus
}
#endif
#endif
