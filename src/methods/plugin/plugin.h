/*
 * Methods from shared libraries that option --plugin names (include/kvdim/plugin.h). A loaded
 * method is registered like any other (method.h). Its functions are called through an adapter for
 * the axis that it shortens, which checks every result of the library.
 */
#ifndef KVD_METHODS_PLUGIN_PLUGIN_H
#define KVD_METHODS_PLUGIN_PLUGIN_H

#include "common/run.h"
#include "methods/axis.h"

typedef enum {
    KVD_PLUGIN_TOKENS,
    KVD_PLUGIN_BITS,
    /* Method that makes projection matrices when the plan is opened. */
    KVD_PLUGIN_MAKER,
    /* Method that prunes channels of keys at the end of a prompt. */
    KVD_PLUGIN_CHANNELS,
    KVD_PLUGIN_LAYERS
} kvd_plugin_kind;

/*
 * Loads the library `path` and appends its methods to the registry. Fails, without appending any,
 * if the file cannot be loaded, lacks the function kvdim_plugin_v1 or has another ABI version. Also
 * fails if a method's name is already registered or its table breaks a rule of the public headers.
 * Loaded libraries stay until the process ends. Not thread-safe.
 */
int kvd_plugin_load(const char *path, kvd_err *err);
/* Handles option --plugin (as a callback of KVD_OPT_CALL); ignores `config`. */
int kvd_plugin_option(void *config, const char *path, kvd_err *err);

/*
 * Returns the i-th method of all loaded libraries, and writes its kind to *kind. The result points
 * to the first member of the method's structure (kvd_tokens_method, kvd_bits_method, ...). Returns
 * NULL if there is no i-th method.
 */
const kvd_method_info *kvd_plugin_method_at(int i, kvd_plugin_kind *kind);

/*
 * Records every loaded library as an input of the run, and its version as the parameter "plugin".
 */
int kvd_plugins_record(kvd_run *run, kvd_err *err);

/* Returns the path of the i-th loaded library as the user gave it, or NULL if there is none. */
const char *kvd_plugin_path_at(int i);
/* Returns true if the method comes from the i-th loaded library. */
bool kvd_plugin_has(int i, const kvd_method_info *m);

#endif
