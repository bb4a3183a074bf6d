/* The command line of kvdim-collect. */
#ifndef KVD_COLLECT_OPTIONS_H
#define KVD_COLLECT_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/args.h"
#include "common/half.h"
#include "model/shapes.h"

enum { KVD_MAX_TEXTS = 4096 };

typedef struct {
    kvd_common_options common;
    const char *model;      /* NULL with a shape */
    const kvd_shape *shape; /* NULL with a model */
    const char *text[KVD_MAX_TEXTS];
    size_t n_text;
    bool text_given; /* --text: only then are further arguments texts */
    const char *ids;
    size_t n_random;
    const char *field;
    bool no_special;
    size_t tokens, seq_len, batch; /* 0: not given                          */
    bool rope_both;
    bool moments;               /* --moments, with or without a file     */
    const char *moments_file;   /* NULL: -o is the moments file          */
    bool attention;             /* --attention, with or without a file   */
    const char *attention_file; /* NULL: -o is the attention file        */
    size_t attention_requests;  /* kept token by token                   */
    bool fisher;                /* --fisher, with or without a file      */
    const char *fisher_file;    /* NULL: -o is the Fisher file           */
    size_t fisher_rows;         /* tokens kept one by one                */
    bool fisher_rows_given;
    size_t *snapshots; /* [n_snapshots] rising token counts; allocated */
    size_t n_snapshots;
    int first_layer, last_layer; /* last -1: the model's last            */
    kvd_dtype dtype;
    kvd_dtype compute; /* KVD_F32 or KVD_BF16                  */
    int gpus;          /* 0: not given; once settled: on the CPU */
    const char *label;
    bool resume;
    double save_every; /* seconds */
} kvd_collect_options;

void kvd_collect_defaults(kvd_collect_options *o);

/* Whether every value is written: unless -o is the moments', the attention's or the Fisher file. */
bool kvd_collect_dumps(const kvd_collect_options *o);

/* For kvd_args_parse with a kvd_collect_options that holds the defaults; refuses combinations that
 * make no sense. */
extern const struct argp kvd_collect_argp;

#endif
