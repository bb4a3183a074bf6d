/*
 * Structures and checks that the adapters of all axes (tokens, bits, dims, layers) use. Private to
 * this folder.
 */
#ifndef KVD_METHODS_PLUGIN_PLUGIN_METHOD_H
#define KVD_METHODS_PLUGIN_PLUGIN_METHOD_H

#include <kvdim/plugin_bits.h>
#include <kvdim/plugin_dims.h>
#include <kvdim/plugin_layers.h>
#include <kvdim/plugin_tokens.h>
#include <stdatomic.h>

#include "methods/bits/bits.h"
#include "methods/dims/dims.h"
#include "methods/layers/layers.h"
#include "methods/plugin/plugin.h"
#include "methods/tokens/tokens.h"

enum { KVD_PLUGIN_KEYS = 8 };

typedef struct {
    /*
     * The method as kvdim calls it. Must be the first member, because kvd_plugin_of casts a pointer
     * to kvd_method_info.
     */
    union {
        kvd_method_info info;
        kvd_tokens_method tokens;
        kvd_bits_method bits;
        kvd_dims_maker maker;
        kvd_channels_method channels;
        kvd_layers_method layers;
    } as;
    kvd_plugin_kind kind;
    /*
     * Copy of the library's own structure for the method. Members that a shorter structure lacks
     * are 0.
     */
    union {
        kvdim_method method;
        kvdim_tokens_method tokens;
        kvdim_bits_method bits;
        kvdim_dims_method dims;
        kvdim_layers_method layers;
    } api;
    const char *path; /* path as the user gave it */
    kvd_parameter parameter[KVD_PLUGIN_KEYS + 1];
    kvd_tradeoff tradeoff;
    /*
     * A flag is set if a function of the plugin returned a bad result to a caller that cannot
     * report errors. The next function that can report errors then fails.
     */
    atomic_bool bad_state, bad_bits, bad_window, bad_group;
} kvd_plugin_method;

const kvd_plugin_method *kvd_plugin_of(const kvd_parameter_values *v);

kvd_plugin_method *kvd_plugin_flags(const kvd_plugin_method *m);

/*
 * Fills *err with a message about a wrong result of the plugin's `function`, and returns -1. The
 * program then ends with status 2.
 */
int kvd_plugin_wrong(const kvd_plugin_method *m, const char *function, kvd_err *err,
                     const char *fmt, ...) KVD_PRINTF(4, 5);
/* Fills *err with the message `error` that the plugin wrote, and returns -1. */
int kvd_plugin_failed(const kvd_plugin_method *m, const char *function,
                      const char error[KVDIM_ERROR_BYTES], kvd_err *err);

kvdim_model kvd_plugin_model(const kvd_config *c, uint64_t seed);

/*
 * Number of guard bytes after memory to which a plugin writes. kvd_guard_set writes a pattern to
 * them; kvd_guard_holds returns false if the plugin has overwritten them.
 */
enum { KVD_GUARD = 64 };
void kvd_guard_set(void *memory, size_t bytes);
bool kvd_guard_holds(const void *memory, size_t bytes);

/*
 * Each of these functions makes a method of one axis: it fills m->as and m->kind from the plugin's
 * functions in m->api. It fails if the plugin lacks a required function, or has two functions that
 * exclude each other.
 */
int kvd_plugin_tokens(kvd_plugin_method *m, kvd_err *err);
int kvd_plugin_bits(kvd_plugin_method *m, kvd_err *err);
int kvd_plugin_dims(kvd_plugin_method *m, kvd_err *err);
int kvd_plugin_layers(kvd_plugin_method *m, kvd_err *err);

#endif
