#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/files/output.h"
#include "common/files/output_folder.h"
#include "common/run.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;
/* true if realpath is to fail as if memory were exhausted */
static bool no_memory;

char *realpath(const char *path, char *resolved)
{
    char *(*next)(const char *, char *);
    if (no_memory) {
        errno = ENOMEM;
        return NULL;
    }
    *(void **)&next = dlsym(RTLD_NEXT, "realpath");
    return next(path, resolved);
}

static const char *put(const char *name, const char *text, size_t len)
{
    unit_write(temp_file(name), text, len);
    return temp_file(name);
}

TEST(test_command_line_is_quoted)
{
    char *argv[] = {"kvdim-collect", "a b.txt", "it's",      "",      "$HOME",
                    "plain-1.0,2:3", "x;y",     "new\nline", "\"q\"", NULL};
    kvd_common_options opt = {.seed = 9, .threads = 1};
    kvd_run run;
    OK(kvd_run_start(&run, "kvdim-collect", 9, argv, &opt, &err));
    assert_string_equal(run.command_line,
                        "kvdim-collect 'a b.txt' 'it'\\''s' '' '$HOME' plain-1.0,2:3 'x;y' "
                        "'new\nline' '\"q\"'");
    char command[512], words[512] = "";
    (void)snprintf(command, sizeof command, "set -- %s; printf '%%s|' \"$@\"", run.command_line);
    FILE *shell = popen(command, "r");
    assert_non_null(shell);
    words[fread(words, 1, sizeof words - 1, shell)] = '\0';
    pclose(shell);
    assert_string_equal(words,
                        "kvdim-collect|a b.txt|it's||$HOME|plain-1.0,2:3|x;y|new\nline|\"q\"|");
    assert_int_equal(run.seed, 9);
    assert_int_equal(run.threads, 1);
    int y, mo, d, h, mi, s;
    assert_int_equal(sscanf(run.started_utc, "%4d-%2d-%2dT%2d:%2d:%2dZ", &y, &mo, &d, &h, &mi, &s),
                     6);
    assert_true(kvd_run_elapsed(&run) >= 0 && kvd_run_elapsed(&run) < 60);
    kvd_run_release(&run);
    kvd_run_release(&run);
    opt.threads = 0;
    OK(kvd_run_start(&run, "x", 0, argv, &opt, &err));
    assert_true(opt.threads >= 1 && run.threads == opt.threads);
    kvd_run_release(&run);
}

/* The empty file's hash must be the published XXH3-128 value of zero bytes. */
TEST(test_inputs)
{
    kvd_run run = {0};
    OK(kvd_run_add_input(&run, put("empty", "", 0), &err));
    assert_string_equal(run.inputs[0].hash, "xxh3:99aa06d3014798d86001c324468d497f");
    OK(kvd_run_add_input(&run, put("text", "hello\n", 6), &err));
    assert_int_equal(run.inputs[1].bytes, 6);
    assert_string_equal(run.inputs[1].schema, "");
    assert_string_equal(run.inputs[1].made_by, "");
    assert_int_equal(strlen(run.inputs[1].hash), 37);
    assert_string_not_equal(run.inputs[1].hash, run.inputs[0].hash);
    char *big = unit_alloc(3 << 20);
    OK(kvd_run_add_input(&run, put("big", big, 3 << 20), &err));
    assert_int_equal(run.inputs[2].bytes, 3 << 20);
    FAILS(kvd_run_add_input(&run, "/nowhere/x", &err),
          "cannot open '/nowhere/x': No such file or directory");
    assert_int_equal(run.n_inputs, 3);
    kvd_run_release(&run);
}

static void folder_hash(char *hash, uint64_t *bytes)
{
    kvd_run run = {0};
    const int listed = run.n_inputs;
    OK(kvd_run_add_input(&run, temp_folder(), &err));
    assert_int_equal(run.n_inputs, listed);
    OK(kvd_run_add_model(&run, temp_folder(), &err));
    strcpy(hash, run.inputs[0].hash);
    *bytes = run.inputs[0].bytes;
    kvd_run_release(&run);
}

TEST(test_folder_hash)
{
    char first[40], again[40], changed[40];
    uint64_t bytes, more;
    folder_hash(first, &bytes);
    folder_hash(again, &more);
    assert_string_equal(first, again);
    assert_int_equal(bytes, more);
    put("text", "hellO\n", 6);
    folder_hash(changed, &more);
    assert_string_not_equal(first, changed);
    put("text", "hello\n", 6);
    /* A renamed file must change the folder's hash. */
    char from[128], to[128];
    (void)snprintf(from, sizeof from, "%s/text", temp_folder());
    (void)snprintf(to, sizeof to, "%s/text2", temp_folder());
    assert_int_equal(rename(from, to), 0);
    folder_hash(changed, &more);
    assert_string_not_equal(first, changed);
    assert_int_equal(bytes, more);
    assert_int_equal(rename(to, from), 0);
    (void)snprintf(to, sizeof to, "%s/inner", temp_folder());
    assert_int_equal(mkdir(to, 0700), 0);
    put(".hidden", "h", 1);
    put("files.tar.xz", "an archive of the other files", 29);
    folder_hash(again, &more);
    assert_string_equal(first, again);
    assert_int_equal(bytes, more);
}

TEST(test_parameters)
{
    kvd_run run = {0};
    char value[2000];
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    assert_int_equal(kvd_run_parameter(&run, "tokens", &err, "%d", 4096), 0);
    assert_int_equal(kvd_run_parameter(&run, "text", &err, "%s", value), 0);
    assert_int_equal(run.n_parameters, 2);
    assert_string_equal(run.parameters[0][0], "tokens");
    assert_string_equal(run.parameters[0][1], "4096");
    assert_int_equal(strlen(run.parameters[1][1]), 511);
    assert_string_equal(run.parameters[1][1] + 508, "...");
    assert_int_equal(kvd_run_parameter(&run, value, &err, "x"), -1);
    kvd_run_release(&run);
}

TEST(test_interruption)
{
    char *argv[] = {"x", NULL};
    kvd_common_options opt = {.threads = 1};
    kvd_run run;
    OK(kvd_run_start(&run, "x", 1, argv, &opt, &err));
    assert_false(kvd_interrupted());
    raise(SIGTERM);
    raise(SIGTERM); /* a second SIGTERM, as `timeout` sends */
    assert_true(kvd_interrupted());
    const pid_t pid = fork();
    if (pid == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 600000000}, NULL);
        raise(SIGTERM);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    FAILS(kvd_fail_interrupted(&err), "interrupted");
    kvd_run_release(&run);
    OK(kvd_run_start(&run, "x", 1, argv, &opt, &err));
    assert_false(kvd_interrupted());
    kvd_run_release(&run);
}

static int exit_status(int status, const char *to, char *text, size_t size)
{
    int ends[2], result;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 2);
        if (!freopen(to, "w", stdout))
            _exit(99);
        printf("result\n");
        kvd_err e = {"it went wrong"};
        _exit(kvd_run_exit("kvdim-x", status, &e));
    }
    close(ends[1]);
    const ssize_t n = read(ends[0], text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

TEST(test_exit)
{
    char text[256];
    assert_int_equal(exit_status(0, "/dev/null", text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(exit_status(-1, "/dev/null", text, sizeof text), 1);
    assert_string_equal(text, "kvdim-x: it went wrong\n");
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(exit_status(0, "/dev/full", text, sizeof text), 1);
        assert_string_equal(text,
                            "kvdim-x: cannot write to standard output: No space left on device\n");
    }
}

/* An output path that is also an input path, or cannot be compared with it, is an error. */
TEST(test_inputs_are_kept)
{
    char path[256], link[256], inner[256];
    (void)snprintf(path, sizeof path, "%s", put("kept", "x", 1));
    (void)snprintf(link, sizeof link, "%s/link-to-kept", temp_folder());
    (void)snprintf(inner, sizeof inner, "%s/new/", temp_folder());
    assert_int_equal(symlink("kept", link), 0);
    const kvd_output_name two[] = {{.option = "-o", .path = path},
                                   {.option = "--timeline", .path = link}};
    for (int i = 0; i < 2; i++) {
        no_memory = i;
        const char *const why = i ? "cannot allocate" : "input";
        FAILS_WITH(kvd_run_not_the_input(link, path, &err), why);
        FAILS_WITH(kvd_output_folder_spares(temp_folder(), link, &err), why);
        FAILS_WITH(kvd_output_distinct(two, 2, &err), i ? "cannot allocate" : "the same file");
    }
    no_memory = false;
    FAILS_WITH(kvd_run_not_the_input(inner, temp_folder(), &err), "part of the input folder");
    OK(kvd_output_folder_spares(inner, path, &err));
    OK(kvd_run_not_the_input(inner, path, &err));
}

TEST(test_facts)
{
    assert_true(strlen(kvd_git_revision()) > 0);
    assert_true(strlen(kvd_cpu_name()) > 0);
}

TEST_MAIN(NULL, NULL)
