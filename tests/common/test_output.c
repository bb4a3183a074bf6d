/* Tests output files: each appears whole or not at all, and only one program at a time may write
 * it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/files/output.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;
static const char *folder;
static char path[64], partial[80], lock[80];

static int make_folder(void **state)
{
    (void)state;
    folder = temp_folder();
    (void)snprintf(path, sizeof path, "%s/x.h5", folder);
    (void)snprintf(partial, sizeof partial, "%s.partial", path);
    (void)snprintf(lock, sizeof lock, "%s.lock", path);
    return 0;
}

static void holds(const char *name, const char *text)
{
    size_t n;
    assert_string_equal(unit_read(name, &n), text);
}

TEST(test_commit_replaces)
{
    kvd_output out;
    unit_write_text(path, "old");
    OK(kvd_output_begin(&out, path, &err));
    assert_int_equal(access(lock, F_OK), 0);
    unit_write_text(out.partial, "new");
    holds(path, "old");
    OK(kvd_output_commit(&out, &err));
    holds(path, "new");
    assert_int_equal(access(lock, F_OK), -1);
    assert_int_equal(access(partial, F_OK), -1);
    kvd_output_release(&out, false);
}

TEST(test_release_keeps_or_removes)
{
    kvd_output out;
    for (int keep = 0; keep < 2; keep++) {
        OK(kvd_output_begin(&out, path, &err));
        unit_write_text(out.partial, "half");
        kvd_output_release(&out, keep);
        assert_int_equal(access(partial, F_OK), keep ? 0 : -1);
        assert_int_equal(access(lock, F_OK), -1);
        holds(path, "new");
    }
    kvd_output zero = {0};
    kvd_output_release(&zero, false);
    unlink(partial);
    OK(kvd_output_begin(&out, path, &err));
    FAILS_WITH(kvd_output_commit(&out, &err), "x.h5.partial': No such file or directory");
    kvd_output_release(&out, false);
    holds(path, "new");
}

TEST(test_second_writer_is_refused)
{
    kvd_output out, second;
    char want[200];
    unit_write_text(lock, "99999\n"); /* a lock file of a killed program does not block */
    OK(kvd_output_begin(&out, path, &err));
    assert_int_equal(kvd_output_begin(&second, path, &err), -1);
    (void)snprintf(want, sizeof want, "'%s' is being written by another program (pid %ld)", path,
                   (long)getpid());
    assert_string_equal(err.msg, want);
    kvd_output_release(&second, false);
    assert_int_equal(access(lock, F_OK), 0);
    kvd_output_release(&out, false);
}

/* Several processes increment a number under the lock. A lost increment shows that the lock
 * failed. */
TEST(test_lock_excludes)
{
    enum { PROCESSES = 6, ROUNDS = 60 };
    char counter[80];
    (void)snprintf(counter, sizeof counter, "%s/counter", folder);
    unit_write_text(counter, "0");
    for (int p = 0; p < PROCESSES; p++)
        if (fork() == 0) {
            for (int i = 0; i < ROUNDS;) {
                kvd_output out;
                kvd_err e;
                if (kvd_output_begin(&out, path, &e)) {
                    if (!strstr(e.msg, "is being written"))
                        _exit(1);
                    continue;
                }
                int n = -1;
                FILE *f = fopen(counter, "r+");
                if (!f || fscanf(f, "%d", &n) != 1)
                    _exit(1);
                rewind(f);
                fprintf(f, "%d", n + 1);
                fclose(f);
                kvd_output_release(&out, false);
                i++;
            }
            _exit(0);
        }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    holds(counter, "360");
}

TEST(test_refusals)
{
    kvd_output out;
    char name[400], want[512];
    assert_int_equal(kvd_output_begin(&out, folder, &err), -1);
    (void)snprintf(want, sizeof want, "cannot write '%s': it is a folder", folder);
    assert_string_equal(err.msg, want);
    (void)snprintf(name, sizeof name, "%s/no/x.h5", folder);
    assert_int_equal(kvd_output_begin(&out, name, &err), -1);
    (void)snprintf(want, sizeof want,
                   "cannot write '%s': folder '%s/no': No such file or directory", name, folder);
    assert_string_equal(err.msg, want);
    (void)snprintf(name, sizeof name, "%s/x.h5/y.h5", folder);
    FAILS_WITH(kvd_output_begin(&out, name, &err), "is not a folder");
    assert_int_equal(kvd_output_begin(&out, "", &err), -1);
    FAILS(kvd_output_begin(&out, "/dev/null", &err),
          "cannot write '/dev/null': it is not a regular file");
    (void)snprintf(name, sizeof name, "%s/%0250d", folder, 0);
    FAILS_WITH(kvd_output_begin(&out, name, &err), "File name too long");
    FAILS_WITH(kvd_output_begin(&out, "-", &err), "cannot write to standard output ('-')");
    /* true if the user is root, who may ignore file permissions */
    const bool root = geteuid() == 0;
    if (root && (chown(folder, 65534, 65534) || seteuid(65534)))
        return;
    (void)snprintf(name, sizeof name, "%s/protected.h5", folder);
    unit_write_text(name, "protected");
    assert_int_equal(chmod(name, 0444), 0);
    FAILS_WITH(kvd_output_begin(&out, name, &err), "it exists and is write-protected");
    assert_int_equal(unlink(name), 0);
    assert_int_equal(chmod(folder, 0500), 0);
    FAILS_WITH(kvd_output_begin(&out, name, &err), "Permission denied");
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(root && (seteuid(0) || chown(folder, 0, 0)), 0);
}

TEST(test_link_is_followed)
{
    char target[80], name[80];
    struct stat st;
    (void)snprintf(target, sizeof target, "%s/target", folder);
    (void)snprintf(name, sizeof name, "%s/link", folder);
    unit_write_text(target, "old");
    assert_int_equal(symlink("target", name), 0);
    OK(kvd_output_text(name, "new", 3, &err));
    holds(target, "new");
    assert_int_equal(lstat(name, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
}

TEST(test_derived_names_are_not_followed)
{
    static const char *const kinds[] = {"is a symbolic link", "is a symbolic link",
                                        "has other hard links", "is a FIFO", "is a folder"};
    const char *const names[] = {partial, lock};
    char victim[80], want[200];
    struct stat st;
    kvd_output out;
    (void)snprintf(victim, sizeof victim, "%s/victim", folder);
    alarm(20); /* opening a FIFO for writing would block for ever */
    for (size_t n = 0; n < 2; n++)
        for (size_t k = 0; k < 5; k++) {
            unit_write_text(path, "old");
            unit_write_text(victim, "precious");
            const int made = k == 0   ? symlink("victim", names[n])
                             : k == 1 ? symlink("nothing", names[n])
                             : k == 2 ? link(victim, names[n])
                             : k == 3 ? mkfifo(names[n], 0600)
                                      : mkdir(names[n], 0700);
            assert_int_equal(made, 0);
            assert_int_equal(kvd_output_text(path, "new", 3, &err), -1);
            (void)snprintf(want, sizeof want, "cannot write '%s': it %s; remove it first", names[n],
                           kinds[k]);
            assert_string_equal(err.msg, want);
            assert_int_equal(kvd_output_begin(&out, path, &err), -1);
            assert_null(kvd_output_create(names[n], &err));
            assert_string_equal(err.msg, want);
            holds(victim, "precious");
            holds(path, "old");
            assert_int_equal(lstat(names[n], &st), 0);
            assert_int_equal(remove(names[n]), 0);
            (void)snprintf(want, sizeof want, "%s/nothing", folder);
            assert_int_equal(access(want, F_OK), -1);
            assert_int_equal(access(n ? partial : lock, F_OK), -1);
        }
    alarm(0);
    unit_write_text(partial, "a longer text that was left behind");
    unit_write_text(lock, "1\n");
    OK(kvd_output_text(path, "new", 3, &err));
    holds(path, "new");
}

TEST(test_outputs_are_distinct)
{
    static const char *const beside[] = {".state", ".state.new", NULL};
    char at[7][80], want[400];
    static const char *const end[] = {"/o.h5",         "/./o.h5",         "/alias.h5",
                                      "/o.h5.partial", "/o.h5.state.new", "/o.h5.state",
                                      "/other.h5"};
    for (size_t i = 0; i < 7; i++)
        (void)snprintf(at[i], sizeof at[i], "%s%s", folder, end[i]);
    unit_write_text(at[0], "");
    assert_int_equal(symlink("o.h5", at[2]), 0);
    for (size_t i = 1; i < 6; i++) {
        const kvd_output_name name[] = {
            {"-o", at[0], beside}, {"--none", NULL, NULL}, {"--x", at[i], NULL}};
        assert_int_equal(kvd_output_distinct(name, 3, &err), -1);
        if (i < 3)
            (void)snprintf(want, sizeof want, "--x and -o name the same file '%s'", at[i]);
        else
            (void)snprintf(want, sizeof want,
                           "-o '%s' and --x '%s' would both write '%s': choose another name", at[0],
                           at[i], at[i]);
        assert_string_equal(err.msg, want);
        const kvd_output_name turned[] = {name[2], name[0]};
        assert_int_equal(kvd_output_distinct(turned, 2, &err), -1);
    }
    const kvd_output_name apart[] = {
        {"-o", at[0], beside}, {"--x", at[6], NULL}, {"--y", "o.h5", NULL}};
    OK(kvd_output_distinct(apart, 3, &err));
    const kvd_output_name plain[] = {{"-o", at[0], NULL}, {"--x", at[5], NULL}};
    OK(kvd_output_distinct(plain, 2, &err));
    /* Two outputs would share the temporary file o.h5.state.new: o.h5 with suffix .state.new, and
     * o.h5.state with suffix .new. */
    static const char *const new_state[] = {".state.new", NULL}, *const new[] = {".new", NULL};
    const kvd_output_name both[] = {{"-o", at[0], new_state}, {"--x", at[5], new}};
    assert_int_equal(kvd_output_distinct(both, 2, &err), -1);
    (void)snprintf(want, sizeof want,
                   "-o '%s' and --x '%s' would both write '%s': choose another name", at[0], at[5],
                   at[4]);
    assert_string_equal(err.msg, want);
}

TEST(test_remove)
{
    const char *const name[] = {path, partial, lock};
    for (int i = 0; i < 3; i++)
        unit_write_text(name[i], "left by a killed program");
    for (int twice = 0; twice < 2; twice++) {
        OK(kvd_output_remove(path, &err));
        for (int i = 0; i < 3; i++)
            assert_int_equal(access(name[i], F_OK), -1);
    }
    kvd_output out;
    unit_write_text(path, "kept");
    OK(kvd_output_begin(&out, path, &err));
    FAILS_WITH(kvd_output_remove(path, &err), "is being written by another program");
    holds(path, "kept");
    kvd_output_release(&out, false);
}

TEST(test_text_and_folders)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%s/a/b//c/", folder);
    OK(kvd_make_folder(name, &err));
    OK(kvd_make_folder(name, &err));
    strcat(name, "t.md");
    OK(kvd_output_text(name, "hello", 5, &err));
    holds(name, "hello");
    FAILS_WITH(kvd_make_folder(name, &err), "is a file");
    strcat(name, "/d");
    assert_int_equal(kvd_make_folder(name, &err), -1);
    assert_int_equal(kvd_make_folder("", &err), -1);
    OK(kvd_make_folder("/", &err));
    OK(kvd_make_folder(".", &err));
}

TEST_MAIN(make_folder, NULL)
