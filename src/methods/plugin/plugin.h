/* Compression methods from shared libraries (plugins), which the option --plugin loads. */
#ifndef KVD_METHODS_PLUGIN_PLUGIN_H
#define KVD_METHODS_PLUGIN_PLUGIN_H

#include "common/run.h"
#include "methods/axis.h"

typedef enum {
    KVD_PLUGIN_TOKENS,
    KVD_PLUGIN_BITS,
    /* Plugin method that makes projection matrices before the run. */
    KVD_PLUGIN_MAKER,
    /* Plugin method that prunes channels of keys at the end of a prompt. */
    KVD_PLUGIN_CHANNELS,
    KVD_PLUGIN_LAYERS
} kvd_plugin_kind;

/* Loads a library and registers all its methods, or fails. Not thread-safe. */
int kvd_plugin_load(const char *path, kvd_err *err);
int kvd_plugin_option(void *config, const char *path, kvd_err *err);

/* Returns plugin method number i and sets *kind, or returns NULL if there are fewer. The result may
 * be cast to the structure of methods of that kind. */
const kvd_method_info *kvd_plugin_method_at(int i, kvd_plugin_kind *kind);

/* Records each plugin library as an input of the run, and its version as parameter "plugin". */
int kvd_plugins_record(kvd_run *run, kvd_err *err);

const char *kvd_plugin_path_at(int i);
bool kvd_plugin_has(int i, const kvd_method_info *m);

#endif
