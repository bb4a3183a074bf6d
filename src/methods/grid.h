/* Splits the value of option --method into single methods, and prints the list of known methods. */
#ifndef KVD_METHODS_GRID_H
#define KVD_METHODS_GRID_H

#include "common/options.h"
#include "common/run.h"
#include "methods/method.h"
#include "methods/plugin/plugin.h"

/* Appends the methods of one --method option to text[] and, unless NULL, to method[]. The caller
 * frees the strings, even after a failure. "none,zack,p=0.5,h2o+kivi" gives three methods.
 * "leankv,th=0.01/0.05,tl=0/0.001" gives all four combinations. Fails for more than `most` methods,
 * a duplicate, an empty value and an unknown name. */
int kvd_methods_add(const char *spec, kvd_method *method, char **text, size_t *n, size_t most,
                    kvd_err *err);

/* Records all files that n compression methods read, plugins included, as inputs of *run. */
int kvd_methods_add_inputs(const kvd_method *method, size_t n, kvd_run *run, kvd_err *err);

void kvd_method_print_all(void);

#define KVD_METHOD_ARG "NAME[+NAME...][,KEY=VALUE...]"
#define KVD_METHOD_GRAMMAR                                                                         \
    "Method with its parameters, such as zack,p=0.5. NAME+NAME combines methods that shorten "     \
    "different axes of the cache. KEY=A/B/C stands for one method per value. none,zack,p=0.5 is "  \
    "a list of two methods. --list-methods prints all names and parameters"
#define KVD_OPTION_METHOD(add, usual, more)                                                        \
    {                                                                                              \
        "method", .type = KVD_OPT_CALL, .arg = KVD_METHOD_ARG, .call = (add), .repeatable = true,  \
                  .otherwise = usual, .help = KVD_METHOD_GRAMMAR more                              \
    }
#define KVD_METHODS_OF_FILES                                                                       \
    "every method for which the --rates files, or else the --spectrum files, hold the matrices"
#define KVD_OPTION_ERROR_TABLE(T)                                                                  \
    {                                                                                              \
        "error-table", .type = KVD_OPT_TEXT, .arg = "FILE", KVD_INTO(T, files.table),              \
                       .help = "Measured error of cutting each head (kvdim-eval --scan-errors), "  \
                               "for ranks=error"                                                   \
    }
/* Options that name input files of methods. T is the type of the options structure, which must have
 * a member `files` of type kvd_method_paths. */
#define KVD_OPTIONS_METHOD_FILES(T)                                                                \
    {"spectrum", .type = KVD_OPT_TEXTS, .arg = "FILE",                                             \
     KVD_INTO_LIST(T, files.spectrum, files.n_spectra),                                            \
     .help = "Rotations or projections of every head (kvdim-spectrum, kvdim-sensitivity). Of "     \
             "several files, a method takes the one that has the matrices it needs"},              \
        {"rates", .type = KVD_OPT_TEXTS, .arg = "FILE",                                            \
         KVD_INTO_LIST(T, files.rates, files.n_rates),                                             \
         .help = "Number of kept dimensions of every head (kvdim-fit), for methods named without " \
                 "p and r"},                                                                       \
        KVD_OPTION_ERROR_TABLE(T),                                                                 \
        {"calibration", .type = KVD_OPT_TEXT, .arg = "FILE", KVD_INTO(T, files.calibration),       \
         .help = "Q, K and V of calibration text (kvdim-collect --rope both), for methods that "   \
                 "need them"},                                                                     \
    {                                                                                              \
        "fisher", .type = KVD_OPT_TEXT, .arg = "FILE", KVD_INTO(T, files.fisher),                  \
                  .help = "Squared gradients of the loss (kvdim-collect --fisher), for "           \
                          "waterfill, palu's search of ranks and kvquant. kvquant needs the "      \
                          "gradients of the tokens of --calibration"                               \
    }
#define KVD_OPTION_PLUGIN                                                                          \
    {                                                                                              \
        "plugin", .type = KVD_OPT_CALL, .arg = "FILE.so", .call = kvd_plugin_option,               \
                  .repeatable = true, .early = true,                                               \
                  .help = "Add the methods of this shared library to those of --list-methods; it " \
                          "runs inside the program, so give only libraries that you trust"         \
    }
#define KVD_OPTION_LIST_METHODS                                                                    \
    {                                                                                              \
        "list-methods",                                                                            \
            .type = KVD_OPT_PRINT, .print = kvd_method_print_all,                                  \
            .help = "Print every method with its parameters and their defaults, and stop"          \
    }

#endif
