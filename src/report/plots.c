#include "report/plots.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/output.h"
#include "common/run.h"

extern char **environ;

/* All that comes out of fd until its end. */
static int drain(int fd, kvd_text *said, kvd_err *err)
{
    char buf[4096];
    for (;;) {
        ssize_t n = read(fd, buf, sizeof buf - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kvd_fail_errno(err, "cannot read what gnuplot says");
        if (n == 0)
            return 0;
        for (ssize_t i = 0; i < n; i++)
            if (buf[i] == '\0')
                buf[i] = '?';
        buf[n] = '\0';
        kvd_text_raw(said, buf);
    }
}

/* The last line that is not empty, into line[size]. */
static void last_line(const char *text, char *line, size_t size)
{
    const char *end = text + strlen(text);
    while (end > text && (end[-1] == '\n' || end[-1] == ' '))
        end--;
    const char *start = end;
    while (start > text && start[-1] != '\n')
        start--;
    snprintf(line, size, "%.*s", (int)(end - start), start);
}

/* Runs gnuplot in `dir`; no shell is involved, and argv holds no text of a result file. */
static int gnuplot(char *const *argv, const char *dir, const char *figure, kvd_text *said, kvd_err *err)
{
    posix_spawn_file_actions_t actions;
    int pipe_fd[2] = {-1, -1}, status = -1, code = 0;
    pid_t pid;
    char line[200];

    if (pipe2(pipe_fd, O_CLOEXEC))
        return kvd_fail_errno(err, "cannot make a pipe");
    if (posix_spawn_file_actions_init(&actions)) {
        close(pipe_fd[0]);
        close(pipe_fd[1]);
        return kvd_no_memory(err, "starting gnuplot", 0);
    }
    code = posix_spawn_file_actions_addchdir_np(&actions, dir);
    if (!code)
        code = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!code)
        code = posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], 1);
    if (!code)
        code = posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], 2);
    if (!code)
        code = posix_spawnp(&pid, "gnuplot", &actions, NULL, argv, environ);
    close(pipe_fd[1]);
    if (code == ENOENT) {
        kvd_fail(err, "gnuplot is not installed; install it, or give --no-plots to go without figures");
        goto done;
    }
    if (code) {
        errno = code;
        kvd_fail_errno(err, "cannot start gnuplot");
        goto done;
    }
    int heard = drain(pipe_fd[0], said, err);
    while (waitpid(pid, &code, 0) < 0)
        if (errno != EINTR) {
            kvd_fail_errno(err, "cannot wait for gnuplot");
            goto done;
        }
    if (heard)
        goto done;
    if (!WIFEXITED(code) || WEXITSTATUS(code) != 0) {
        last_line(kvd_text_get(said), line, sizeof line);
        kvd_fail(err, "gnuplot failed on figure '%s': %s", figure,
                 line[0]             ? line
                 : WIFSIGNALED(code) ? strsignal(WTERMSIG(code))
                                     : "it said nothing");
        goto done;
    }
    status = 0;
done:
    close(pipe_fd[0]);
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

static int draw(const kvd_figure *f, const char *terminal, const char *dir, const char *scripts,
                kvd_text *said, kvd_err *err)
{
    char *common = NULL, *script = NULL, *head = NULL, *file = NULL, *settings = NULL;
    int status = -1;

    if (asprintf(&common, "%s/common.gp", scripts) < 0)
        common = NULL;
    if (asprintf(&script, "%s/%s", scripts, f->script) < 0)
        script = NULL;
    if (asprintf(&head, "term='%s'; out='figures/%s.%s.partial'; width=%d; height=%d", terminal, f->name,
                 terminal, f->width, f->height) < 0)
        head = NULL;
    if (asprintf(&file, "%s/figures/%s.%s.partial", dir, f->name, terminal) < 0)
        file = NULL;
    settings = strdup(f->settings);
    if (!common || !script || !head || !file || !settings) {
        kvd_no_memory(err, f->name, 0);
        goto done;
    }
    char program[] = "gnuplot", defaults[] = "-d", e[] = "-e";
    char *argv[] = {program, defaults, e, head, e, settings, common, script, NULL};
    if (gnuplot(argv, dir, f->name, said, err))
        goto done;

    /* The figure gets its name when it is complete. */
    char *final = strdup(file);
    if (!final) {
        kvd_no_memory(err, f->name, 0);
        goto done;
    }
    final[strlen(final) - strlen(".partial")] = '\0';
    if (rename(file, final))
        kvd_fail_errno(err, "gnuplot made no figure '%s'", final);
    else
        status = 0;
    free(final);
done:
    if (status && file)
        unlink(file);
    free(common);
    free(script);
    free(head);
    free(file);
    free(settings);
    return status;
}

int kvd_plots_write(const kvd_report *r, const char *dir, const char *scripts, kvd_text *said, kvd_err *err)
{
    /* gnuplot runs in another folder, so a relative path of the scripts must not stay relative. */
    char *where = realpath(scripts, NULL), *figures = NULL;
    int status = -1;
    if (!where)
        return kvd_fail_errno(err, "cannot open the folder of plot scripts '%s'", scripts);
    if (asprintf(&figures, "%s/figures", dir) < 0) {
        figures = NULL;
        kvd_no_memory(err, "a path", 0);
        goto done;
    }
    if (kvd_make_folder(figures, err))
        goto done;
    for (size_t i = 0; i < r->n; i++)
        for (size_t j = 0; j < r->section[i]->n_figures; j++) {
            const kvd_figure *f = &r->section[i]->figure[j];
            if (kvd_interrupted()) {
                kvd_fail_interrupted(err);
                goto done;
            }
            if (draw(f, "svg", dir, where, said, err) || draw(f, "png", dir, where, said, err))
                goto done;
        }
    status = 0;
done:
    free(figures);
    free(where);
    return status;
}
