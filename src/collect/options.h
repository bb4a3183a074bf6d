/* Parses the command line of kvdim-collect. */
#ifndef KVD_COLLECT_OPTIONS_H
#define KVD_COLLECT_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "collect/state.h"
#include "common/files/output.h"
#include "common/half.h"
#include "common/options.h"
#include "common/run.h"
#include "model/checkpoint/shapes.h"

enum { KVD_MAX_TEXTS = 4096 };

typedef struct {
    kvd_common_options common;
    const char *model;      /* NULL if `shape` is given */
    const kvd_shape *shape; /* NULL if `model` is given */
    size_t untrained;       /* seed of random weights in place of the model's; 0 if not given */
    const char *text[KVD_MAX_TEXTS];
    size_t n_text;
    const char *ids;
    size_t n_random;
    const char *field;
    bool no_special;
    size_t tokens, seq_len, batch; /* 0 if not given */
    bool rope_both;
    bool moments;               /* true if --moments is given, with or without a file */
    const char *moments_file;   /* NULL means -o is the moments file */
    bool attention;             /* true if --attention is given, with or without a file */
    const char *attention_file; /* NULL means -o names the attention file */
    size_t attention_requests;  /* number of sequences recorded per token; 0 if not given */
    bool fisher;                /* true if --fisher is given, with or without a file */
    const char *fisher_file;    /* NULL means -o is the Fisher file */
    size_t fisher_rows;         /* number of tokens whose gradients are recorded singly */
    size_t *snapshots;          /* [n_snapshots] increasing token counts; allocated */
    size_t n_snapshots;
    int first_layer, last_layer; /* last_layer -1 is the model's last layer */
    kvd_dtype dtype;
    kvd_dtype compute; /* KVD_F32 or KVD_BF16 */
    int gpus;          /* number of GPUs; 0 if not given, or running on the CPU */
    const char *label;
    bool resume;
    double save_every; /* time between saved states, in seconds */
} kvd_collect_options;

/* Reads argv into *cfg, which must be zeroed. Wrong usage ends the program with status 2. */
void kvd_collect_parse(int argc, char **argv, kvd_collect_options *cfg);
void kvd_collect_options_release(kvd_collect_options *cfg);

/*
 * Returns true if the options ask for a dump, that is if -o is not the moments, attention or Fisher
 * file.
 */
bool kvd_collect_dumps(const kvd_collect_options *o);

enum { KVD_COLLECT_OUTPUTS = 4 };

/*
 * Fills `name` with the output files of the options -o, --moments, --attention and --fisher, which
 * kvd_output_distinct compares.
 */
void kvd_collect_output_names(const kvd_collect_options *o,
                              kvd_output_name name[KVD_COLLECT_OUTPUTS]);

/*
 * Records options and machine in the output files. /parameters has every option with its value. The
 * run key has the options that affect the numbers.
 */

typedef struct {
    const kvd_collect_options *cfg; /* options, resolved */
    const char *model, *corpus;     /* content hashes */
    const char *label;
    size_t n_tokens; /* tokens of all data or of a snapshot, as `corpus` */
    int ranks;
    const char *gpu; /* name of the GPU; empty on the CPU */
} kvd_collect_facts;

/*
 * Fills the parameters of *run and the key *key from the facts *f. The number of threads is taken
 * from *run.
 */
int kvd_collect_record(const kvd_collect_facts *f, kvd_run *run, kvd_run_key *key, kvd_err *err);

#endif
