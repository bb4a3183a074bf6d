/* A temporary folder that is removed when the program ends, and a description of the program's run
 * (command, options, seed) for output files. */
#ifndef KVD_TESTS_TEMP_FOLDER_H
#define KVD_TESTS_TEMP_FOLDER_H

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/run.h"

static char temp_folder_path[] =
    /* The path of the folder is short, so that paths of files in it fit into small arrays. */
    "/tmp/kvdim-test.XXXXXX";
static pid_t temp_folder_owner;

static inline int temp_folder_remove_one(const char *path, const struct stat *s, int kind,
                                         struct FTW *where)
{
    (void)s, (void)kind, (void)where;
    return remove(path);
}

/* Removes the folder when the program exits. Forked children also run this function at their exit,
 * but only the process that made the folder removes it. */
static inline void temp_folder_remove(void)
{
    if (getpid() == temp_folder_owner)
        (void)nftw(temp_folder_path, temp_folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Returns the path of the temporary folder, which the first call makes. A failure ends the
 * program. */
static inline const char *temp_folder(void)
{
    if (temp_folder_owner)
        return temp_folder_path;
    if (!mkdtemp(temp_folder_path)) {
        perror(temp_folder_path);
        exit(1);
    }
    temp_folder_owner = getpid();
    atexit(temp_folder_remove);
    return temp_folder_path;
}

/* Returns the path of a file in the temporary folder, valid until the program ends. */
static inline const char *temp_file(const char *name)
{
    enum { MOST = 64 };
    static char *path[MOST];
    const size_t folder = strlen(temp_folder()) + 1;
    int n = 0;
    while (n < MOST && path[n] && strcmp(path[n] + folder, name) != 0)
        n++;
    if (n == MOST || (!path[n] && asprintf(&path[n], "%s/%s", temp_folder(), name) < 0)) {
        fprintf(stderr, "temp_file: no room for '%s'\n", name);
        exit(1);
    }
    return path[n];
}

static kvd_run run_of_test;

static inline void release_run_of_test(void)
{
    kvd_run_release(&run_of_test);
}

/* Returns the description of this program's run (command, options, seed) that output files record.
 * The first call starts the run, with seed 1. A failure ends the program. */
static inline kvd_run *test_run(void)
{
    static char *argv[] = {NULL, NULL};
    kvd_common_options options = {.seed = 1, .threads = 2};
    kvd_err err;
    if (argv[0])
        return &run_of_test;
    argv[0] = program_invocation_short_name;
    if (kvd_run_start(&run_of_test, argv[0], 1, argv, &options, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    atexit(release_run_of_test);
    return &run_of_test;
}

#endif
