/*
 * What a program knows about its own run: the text of /provenance, the number
 * of threads, and whether somebody asked it to stop.
 */
#ifndef KVD_COMMON_RUN_H
#define KVD_COMMON_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/args.h"
#include "common/err.h"

typedef struct {
    char *path;     /* as given on the command line                        */
    uint64_t bytes; /* size of the file, or of all files of a directory; 0 of what is no file */
    char hash[40];  /* "xxh3:" + 32 hex digits (XXH3-128 of the content)   */
    char *schema;   /* "kvdim/moments", ... or "" when it is not our file  */
    char *made_by;  /* git revision of the program that wrote it, or ""    */
    double seconds; /* that writing it took (elapsed_s), 0 when not known  */
} kvd_run_input;

typedef struct {
    const char *program; /* "kvdim-collect"                               */
    char *command_line;  /* shell-quoted                                  */
    uint64_t seed;
    int threads;
    double started;            /* seconds, CLOCK_MONOTONIC                      */
    char started_utc[32];      /* 2026-01-31T12:00:00Z                          */
    char gpu[128], driver[80]; /* "NVIDIA H200", "580.95.05"; empty: none  */
    kvd_run_input *inputs;
    int n_inputs;
    char (*parameters)[2][512]; /* {name, value as text}, every option with the value used */
    int n_parameters;
} kvd_run;

/*
 * Starts a run: records the command line and the time, applies --threads to
 * OpenBLAS and OpenMP, silences HDF5's own error stack, and installs handlers
 * for SIGINT and SIGTERM that only set a flag. Call once, from main, after
 * parsing. The strings of argv must outlive *run.
 */
int kvd_run_start(kvd_run *run, const char *program, int argc, char **argv, kvd_common_options *opt,
                  kvd_err *err);
void kvd_run_release(kvd_run *run);

/* Hashes a file and lists it as an input. A folder is passed over: what reads the file refuses it in its own words. */
int kvd_run_add_input(kvd_run *run, const char *path, kvd_err *err);
/* The same of a checkpoint: a file, or all regular files of a directory by name (not those in it that start with a dot, nor folders). */
int kvd_run_add_model(kvd_run *run, const char *path, kvd_err *err);

/* Lists an input that is no file: a name, and a content hash "xxh3:...". Its size is 0. */
int kvd_run_add_made_input(kvd_run *run, const char *name, const char *hash, kvd_err *err);

/*
 * Whoever names an input as output has mistyped: it would be gone, or, in a checkpoint's folder, change its hash. An error where `path`, or
 * what it links to, is an input so far, or would be part of one.
 */
int kvd_run_not_an_input(const kvd_run *run, const char *path, kvd_err *err);

/* Records the value used of one option; fmt gives the value as text, cut with "..." after 511 bytes. */
int kvd_run_parameter(kvd_run *run, const char *name, kvd_err *err, const char *fmt, ...) KVD_PRINTF(4, 5);

/* Seconds since kvd_run_start. */
double kvd_run_elapsed(const kvd_run *run);

/* True once SIGINT or SIGTERM has arrived. Long loops ask between pieces of work. */
bool kvd_interrupted(void);

/* The error to return then: "interrupted". */
int kvd_fail_interrupted(kvd_err *err);

/*
 * The end of every main: prints err as "PROGRAM: message" when status is not 0,
 * flushes stdout (a full disk there is an error too), and returns the exit
 * status, 0 or 1.
 */
int kvd_run_exit(const char *program, int status, kvd_err *err);

/* Facts about this build and machine, for provenance and --version. */
const char *kvd_git_revision(void);
const char *kvd_cpu_name(void);

#endif
