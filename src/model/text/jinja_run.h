/* State of a run of a template, for the files jinja*.c. Code that must not run is parsed with
 * `live` false. Values are JSON values, kept in a list until the end; functions return borrowed
 * ones. */
#ifndef KVD_MODEL_TEXT_JINJA_RUN_H
#define KVD_MODEL_TEXT_JINJA_RUN_H

#include <stdbool.h>
#include <stddef.h>

#include "model/text/jinja.h"

enum {
    MAX_DEPTH = 100,    /* nested expressions, blocks and calls of macros */
    MAX_STEPS = 100000, /* tags run and values made */
    MAX_FRAMES = MAX_DEPTH + 2,
    MAX_OUTPUT = 1 << 22,
    MAX_ARGS = 8
};

typedef enum { TEXT, PRINT, BLOCK } node_kind;

/* text between tags, or the inside of a tag */
typedef struct {
    node_kind kind;
    const char *at;
    size_t n;
} node;

typedef enum { END, NAME, STRING, NUMBER, SIGN } token_kind;

/* position in a tag, after `token` */
typedef struct {
    const char *p, *end;
    token_kind kind;
    const char *token;
    size_t n;
} cursor;

typedef struct {
    char *s;
    size_t n, capacity;
} buffer;

typedef struct {
    node *nodes;
    size_t n_nodes;
    json_t *kept;      /* every value that was made */
    json_t *undefined; /* marks a variable without a value; compared by address */
    json_t *spaces;    /* namespace objects, the only values that change */
    json_t *macros;    /* name: number of the node that defines it */
    json_t *frame[MAX_FRAMES];
    int n_frames, base; /* a macro sees frame 0 and those from `base` on */
    buffer out;
    cursor at;
    size_t steps;
    int depth;
    enum { GO, BREAK, CONTINUE } jump;
    /* reasons of failure: an evaluation that another branch may replace, and any other error */
    const char *raised, *broken;
} run;

typedef struct {
    json_t *value[MAX_ARGS], *named;
    int n;
} arguments;

static inline bool is_live(const run *r, bool live)
{
    return live && !r->raised && !r->broken;
}

static inline bool is_undefined(const run *r, const json_t *v)
{
    return v == r->undefined;
}

static inline bool is_number(const json_t *v)
{
    return json_is_integer(v) || json_is_boolean(v);
}

static inline json_int_t number_of(const json_t *v)
{
    return json_is_integer(v) ? json_integer_value(v) : json_is_true(v);
}

/* Ends the run with this reason. */
void kvd_jinja_stop(run *r, const char *why);
/* Fails an evaluation, unless another branch replaces it. Returns the undefined value. */
json_t *kvd_jinja_raise(run *r, const char *why);

/* Takes a new value into the list of kept ones. NULL ends the run. */
json_t *kvd_jinja_keep(run *r, json_t *value);
json_t *kvd_jinja_text(run *r, const char *s, size_t n);
json_t *kvd_jinja_bool(run *r, bool on);

/* Write to the output: bytes, or a value as Python's str does. */
void kvd_jinja_put(run *r, const char *s, size_t n);
void kvd_jinja_put_value(run *r, const json_t *v);
/* Collects the output from here on apart. Returns what kvd_jinja_end_capture needs. */
buffer kvd_jinja_begin_capture(run *r);
/* Returns the output since kvd_jinja_begin_capture, which returned `before`, as a value. */
json_t *kvd_jinja_end_capture(run *r, buffer before);

/* Return what `if v`, `a == b` and `v in list` give in a template. */
bool kvd_jinja_is_true(const run *r, const json_t *v);
bool kvd_jinja_is_equal(const run *r, const json_t *a, const json_t *b);
bool kvd_jinja_contains(run *r, const json_t *list, const json_t *v);
/* Returns the number of characters of a text, or of elements of a list or dictionary. */
size_t kvd_jinja_length(const json_t *v);
/* Returns elements from .. to - 1 of a list, or these characters of a text. */
json_t *kvd_jinja_part(run *r, const json_t *v, size_t from, size_t to);
/* Returns v[key], or the undefined value if there is none. */
json_t *kvd_jinja_item(run *r, const json_t *v, const json_t *key);
/* Returns [key, value] for every entry of a dictionary; or its keys, or its values. */
json_t *kvd_jinja_entries(run *r, json_t *v, bool keys, bool values);
/* Apply method v.name(a), filter v | name(a) or test `v is name(a)`. An unknown name fails the
 * evaluation (kvd_jinja_raise). */
json_t *kvd_jinja_method(run *r, json_t *v, const char *name, const arguments *a);
json_t *kvd_jinja_filter(run *r, json_t *v, const char *name, const arguments *a);
json_t *kvd_jinja_test(run *r, json_t *v, const char *name, const arguments *a);

/* Read tokens of the current tag. */
void kvd_jinja_next(run *r);
void kvd_jinja_open_tag(run *r, size_t i);
bool kvd_jinja_is_token(const run *r, const char *text);
bool kvd_jinja_accept(run *r, const char *text);
void kvd_jinja_expect(run *r, const char *text);
/* Copies the current token, which must be a name, and reads the next one. */
bool kvd_jinja_take_name(run *r, char name[64]);

/* Read a variable from the innermost frame that has it, and set one in the innermost frame. */
json_t *kvd_jinja_look_up(run *r, const char *name);
void kvd_jinja_assign(run *r, const char *name, json_t *value);
/* Opens a frame for the variables of a loop or macro. Returns false at the limit of nesting. */
bool kvd_jinja_push_frame(run *r);

/* Reads an expression, or one without `if` and `else` at its end. */
json_t *kvd_jinja_expression(run *r, bool live);
json_t *kvd_jinja_disjunction(run *r, bool live);

/* Runs nodes from i up to a block that begins with a word of `ends` (NULL: all), and returns its
 * number, with its first word as the current token. */
size_t kvd_jinja_run_until(run *r, size_t i, const char *const *ends, bool live);

#endif
