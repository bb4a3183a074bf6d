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
    const char *model; /* path of the model; NULL if `shape` is given */
    /* Shape of a published model, with random weights; NULL if `model` is given. */
    const kvd_shape *shape;
    size_t untrained; /* seed of random weights that replace the model's weights; 0 if not given */
    const char *text[KVD_MAX_TEXTS];
    size_t n_text;
    const char *ids;
    size_t n_random;
    const char *field;
    bool no_special;
    /* Numbers of tokens: in all, per sequence, per batch; 0 if the option was not given. */
    size_t tokens, seq_len, batch;
    bool rope_both;
    bool moments;             /* true if --moments is given, with or without a file */
    const char *moments_file; /* separate file of the second moments; NULL means -o is that file */
    bool attention;           /* true if --attention is given, with or without a file */
    /* Separate file of the attention statistics; NULL means -o is that file. */
    const char *attention_file;
    /* Number of first sequences whose statistics are kept per token; 0 if not given. */
    size_t attention_requests;
    bool fisher; /* true if --fisher is given, with or without a file */
    /* Separate file of the squared gradients; NULL means -o is that file. */
    const char *fisher_file;
    size_t fisher_rows; /* number of first tokens whose gradients are also recorded one by one */
    /* Token counts after which snapshots are written, increasing, [n_snapshots]; allocated. */
    size_t *snapshots;
    size_t n_snapshots;
    /* Range of layers to record; last_layer -1 is the model's last layer. */
    int first_layer, last_layer;
    kvd_dtype dtype;
    /* Number type in which a GPU computes the forward pass: KVD_F32 or KVD_BF16. */
    kvd_dtype compute;
    int gpus; /* number of GPUs; 0 if not given, or if the CPU computes */
    const char *label;
    bool resume;
    double save_every; /* seconds between two saves of the run's state for --resume */
} kvd_collect_options;

/* Reads argv into *cfg, which must be zeroed. Wrong usage ends the program with status 2. */
void kvd_collect_parse(int argc, char **argv, kvd_collect_options *cfg);
void kvd_collect_options_release(kvd_collect_options *cfg);

/*
 * Returns true if the options ask for an activations file (recorded Q, K and V), that is if -o is
 * not the moments, attention or Fisher file.
 */
bool kvd_collect_dumps(const kvd_collect_options *o);

enum { KVD_COLLECT_OUTPUTS = 4 };

/*
 * Fills `name` with the output files of the options -o, --moments, --attention and --fisher, which
 * kvd_output_distinct compares.
 */
void kvd_collect_output_names(const kvd_collect_options *o,
                              kvd_output_name name[KVD_COLLECT_OUTPUTS]);

typedef struct {
    const kvd_collect_options *cfg; /* options after --device and the like have been resolved */
    const char *model, *corpus;     /* content hashes of the model and of the token sequence */
    const char *label;
    /* Number of tokens of the whole run or of a snapshot; `corpus` is the hash of these tokens. */
    size_t n_tokens;
    int ranks;
    const char *gpu; /* name of the GPU; "" if the CPU computes */
} kvd_collect_facts;

/*
 * Records the options and the machine of a run: fills the parameters of *run (every option with
 * its value) and the run key *key (the options that affect the numbers) from *f. The number of
 * threads is taken from *run.
 */
int kvd_collect_record(const kvd_collect_facts *f, kvd_run *run, kvd_run_key *key, kvd_err *err);

#endif
