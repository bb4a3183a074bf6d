/* A temporary folder, removed when the program ends. */
#ifndef KVD_TESTS_TEMP_FOLDER_H
#define KVD_TESTS_TEMP_FOLDER_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char temp_folder_path[] =
    /* Short, because paths in the folder must fit into small arrays. */
    "/tmp/kvdim-test.XXXXXX";
static pid_t temp_folder_owner;

static inline int temp_folder_remove_one(const char *path, const struct stat *s, int kind,
                                         struct FTW *where)
{
    (void)s, (void)kind, (void)where;
    return remove(path);
}

/* Forked children call exit too, so only the maker removes the folder. */
static inline void temp_folder_remove(void)
{
    if (getpid() == temp_folder_owner)
        (void)nftw(temp_folder_path, temp_folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The first call makes the folder. A failure ends the program. */
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

#endif
