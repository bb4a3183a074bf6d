/* Tests output folders: each appears complete or not at all. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/files/output_folder.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;
static const char *folder;
static char path[64], partial[80], lock[80];

static int make_folder(void **state)
{
    (void)state;
    folder = temp_folder();
    (void)snprintf(path, sizeof path, "%s/x", folder);
    (void)snprintf(partial, sizeof partial, "%s.partial", path);
    (void)snprintf(lock, sizeof lock, "%s.lock", path);
    return 0;
}

static void run(const char *what)
{
    char command[300];
    (void)snprintf(command, sizeof command, "cd '%s' && %s", folder, what);
    assert_int_equal(system(command), 0);
}

static void put(kvd_output *out, const char *name, const char *text)
{
    OK(kvd_output_folder_text(out, name, text, strlen(text), &err));
}

TEST(test_appears_whole)
{
    kvd_output out;
    char with_slash[80];
    (void)snprintf(with_slash, sizeof with_slash, "%s//", path);
    run("rm -rf x && printf old >source");
    OK(kvd_output_folder_begin(&out, with_slash, false, &err));
    assert_int_equal(access(lock, F_OK), 0);
    put(&out, "a", "new");
    char source[80];
    (void)snprintf(source, sizeof source, "%s/source", folder);
    OK(kvd_output_folder_copy(&out, "b", source, &err));
    assert_int_equal(access(path, F_OK), -1);
    OK(kvd_output_folder_commit(&out, false, &err));
    kvd_output_folder_release(&out);
    run("[ \"$(cat x/a x/b)\" = newold ] && [ ! -e x.partial ] && [ ! -e x.lock ]");
}

TEST(test_given_up)
{
    kvd_output out;
    run("rm -rf x");
    OK(kvd_output_folder_begin(&out, path, false, &err));
    put(&out, "a", "new");
    kvd_output_folder_release(&out);
    run("[ ! -e x ] && [ ! -e x.partial ] && [ ! -e x.lock ]");
    kvd_output none = {0};
    kvd_output_folder_release(&none);
}

TEST(test_replaces)
{
    kvd_output out;
    run("rm -rf x && mkdir x && printf old >x/old");
    OK(kvd_output_folder_begin(&out, path, true, &err));
    put(&out, "a", "new");
    run("[ -e x/old ]");
    OK(kvd_output_folder_commit(&out, true, &err));
    run("[ \"$(ls x)\" = a ] && [ ! -e x.partial ] && [ ! -e x.lock ]");
    run("rm -rf x");
    OK(kvd_output_folder_begin(&out, path, true, &err));
    OK(kvd_output_folder_commit(&out, true, &err));
    run("[ -d x ]");
}

/* A folder NAME.partial that contains folders was not written by kvdim and must stay. */
TEST(test_left_behind)
{
    kvd_output out;
    run("rm -rf x && mkdir x.partial && printf half >x.partial/a");
    OK(kvd_output_folder_begin(&out, path, false, &err));
    run("[ -z \"$(ls x.partial)\" ]");
    kvd_output_folder_release(&out);
    run("mkdir -p x.partial/deep && printf mine >x.partial/deep/a");
    FAILS_WITH(kvd_output_folder_begin(&out, path, false, &err), "cannot remove 'deep' in '");
    run("[ \"$(cat x.partial/deep/a)\" = mine ] && [ ! -e x.lock ] && rm -rf x.partial");
}

static void refused(const char *prepare, const char *name, const char *message)
{
    kvd_output out;
    char full[100];
    run(prepare);
    (void)snprintf(full, sizeof full, "%s/%s", folder, name);
    FAILS_WITH(kvd_output_folder_begin(&out, full, false, &err), message);
    kvd_output_folder_release(&out);
    run("rm -rf x y && [ -z \"$(ls | grep -v source)\" ]");
}

TEST(test_refuses)
{
    refused("mkdir x", "x", "it exists");
    refused("touch x", "x", "it is not a folder");
    refused("mkdir y && ln -s y x", "x", "it is not a folder");
    refused("true", "nowhere/x", "folder '");
    refused("touch x", "x/y", "' is not a folder");
    kvd_output out;
    assert_int_equal(kvd_output_folder_begin(&out, "", false, &err), -1);
    assert_int_equal(kvd_output_folder_begin(&out, "/", false, &err), -1);
}

TEST(test_one_writer)
{
    kvd_output a, b;
    run("rm -rf x");
    OK(kvd_output_folder_begin(&a, path, false, &err));
    put(&a, "a", "new");
    FAILS_WITH(kvd_output_folder_begin(&b, path, false, &err),
               "is being written by another program");
    run("[ -e x.partial/a ]");
    kvd_output_folder_release(&a);
}

static const char *const contents[] = {"page", "in/", NULL};
static bool exchange_refused;

/* Replaces the system call renameat2. If `exchange_refused`, fails as on network file systems. */
int renameat2(int old_fd, const char *from, int new_fd, const char *to, unsigned flags)
{
    if (!exchange_refused)
        return (int)syscall(SYS_renameat2, old_fd, from, new_fd, to, flags);
    errno = EINVAL;
    return -1;
}

static void renew(const char *name)
{
    kvd_output out;
    OK(kvd_output_folder_renew(&out, name, contents, &err));
    put(&out, "page", "new");
    put(&out, "in/a", "new");
    OK(kvd_output_folder_commit(&out, true, &err));
    kvd_output_folder_release(&out);
    run("[ \"$(cat x/page x/in/a)\" = newnew ] && [ ! -e x/in/old ] && [ ! -e x.partial ] && "
        "[ ! -e x.lock ] && [ ! -e x.old ]");
}

TEST(test_renews)
{
    char other[80];
    run("rm -rf x y");
    renew(path);
    run("touch x/in/old && mkdir -p x.partial/in && touch x.partial/in/b x.partial/page");
    renew(path);
    exchange_refused = true;
    run("touch x/in/old");
    renew(path);
    exchange_refused = false;
    run("ln -s x y && touch x/in/old");
    (void)snprintf(other, sizeof other, "%s/y/", folder);
    renew(other);
    run("[ -L y ] && rm y");
}

static void not_renewed(const char *prepare, const char *message)
{
    kvd_output out;
    run("rm -rf x x.partial && mkdir -p x/in && printf old >x/page");
    run(prepare);
    FAILS_WITH(kvd_output_folder_renew(&out, path, contents, &err), message);
    kvd_output_folder_release(&out);
    run("[ \"$(cat x/page)\" = old ] && [ ! -e x.lock ]");
}

TEST(test_renews_nothing_else)
{
    kvd_output out;
    not_renewed("touch x/notes", "cannot remove 'notes' in '");
    not_renewed("mkdir x/notes", "cannot remove 'notes' in '");
    not_renewed("mkdir x/in/deep", "cannot remove 'deep' in '");
    not_renewed("mkdir x.partial && touch x.partial/notes", "cannot remove 'notes' in '");
    run("[ -e x.partial/notes ] && rm -r x.partial");
    assert_int_equal(kvd_output_folder_renew(&out, ".", contents, &err), -1);
    assert_int_equal(kvd_output_folder_renew(&out, "/tmp/..", contents, &err), -1);
    assert_int_equal(kvd_output_folder_renew(&out, "", contents, &err), -1);
}

TEST(test_not_committed)
{
    kvd_output out;
    run("rm -rf x");
    renew(path);
    OK(kvd_output_folder_renew(&out, path, contents, &err));
    put(&out, "in/a", "half");
    kvd_output_folder_release(&out);
    run("[ \"$(cat x/page x/in/a)\" = newnew ] && [ ! -e x.partial ] && [ ! -e x.lock ]");
}

TEST_MAIN(make_folder, NULL)
