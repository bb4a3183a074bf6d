/* Structures and checks that adapt a plugin's methods to kvdim's interfaces. */
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
    /* The plugin's compression method, described by the same structure as a built-in method. Must
     * be the first member. */
    union {
        kvd_method_info info;
        kvd_tokens_method tokens;
        kvd_bits_method bits;
        kvd_dims_maker maker;
        kvd_channels_method channels;
        kvd_layers_method layers;
    } as;
    kvd_plugin_kind kind;
    /* Copy of the plugin's own structure. Members that an older plugin does not have are 0. */
    union {
        kvdim_method method;
        kvdim_tokens_method tokens;
        kvdim_bits_method bits;
        kvdim_dims_method dims;
        kvdim_layers_method layers;
    } api;
    const char *path;
    kvd_parameter parameter[KVD_PLUGIN_KEYS + 1];
    kvd_tradeoff tradeoff;
    /* Each is true if the plugin's state_bytes, select_bits, window or group returned an invalid
     * number. */
    atomic_bool bad_state, bad_bits, bad_window, bad_group;
} kvd_plugin_method;

const kvd_plugin_method *kvd_plugin_of(const kvd_parameter_values *v);

/* State of a plugin method between the calls of its functions `open` and `close`. Only methods that
 * select tokens or quantise have these functions. */
typedef struct {
    const kvd_plugin_method *method;
    const void *self;
    void *own; /* pointer that the plugin's `open` stored */
    void (*close)(void *own);
} kvd_plugin_opened;
/* Calls the plugin's function `open`, if it has one. Stores the method's state in *self, which
 * kvd_plugin_close frees. */
int kvd_plugin_open(const kvd_parameter_values *v, const kvd_method_setup *s,
                    int (*open)(const double *value, const kvdim_model *model, void **own,
                                char *error),
                    void (*close)(void *own), void **self, kvd_err *err);
void kvd_plugin_close(void *self);

kvd_plugin_method *kvd_plugin_flags(const kvd_plugin_method *m);

/* Reports that the plugin's function `function` gave a wrong result, which `fmt` describes. Fills
 * *err and returns -1. */
int kvd_plugin_wrong(const kvd_plugin_method *m, const char *function, kvd_err *err,
                     const char *fmt, ...) KVD_PRINTF(4, 5);
/* Reports that the plugin's function `function` failed with the message `error`. Fills *err and
 * returns -1. */
int kvd_plugin_failed(const kvd_plugin_method *m, const char *function,
                      const char error[KVDIM_ERROR_BYTES], kvd_err *err);

kvdim_model kvd_plugin_model(const kvd_config *c, uint64_t seed);

/* Returns the KVD_NEEDS_... bits for a method's KVDIM_NEEDS_... bits. */
unsigned kvd_plugin_needs(const kvdim_method *m);

/* Number of guard bytes after each array that a plugin writes, to detect writes beyond its end. */
enum { KVD_GUARD = 64 };
void kvd_guard_set(void *memory, size_t bytes);
bool kvd_guard_holds(const void *memory, size_t bytes);

/* Sets m->as to a method that drops or ranks tokens by calling the plugin's functions. Fails if the
 * plugin lacks a required function. */
int kvd_plugin_tokens(kvd_plugin_method *m, kvd_err *err);
int kvd_plugin_bits(kvd_plugin_method *m, kvd_err *err);
int kvd_plugin_dims(kvd_plugin_method *m, kvd_err *err);
int kvd_plugin_layers(kvd_plugin_method *m, kvd_err *err);

#endif
