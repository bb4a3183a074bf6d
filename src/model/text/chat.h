/*
 * Chat formats of one user and one assistant, without tools. Jinja templates are recognised by
 * parts of their text (tests/oracle/make_chat.py checks with jinja2).
 *
 * A conversation: `bos`, `start`, per turn `user`, message, `header`, answer, with `end` between
 * turns.
 */
#ifndef KVD_MODEL_TEXT_CHAT_H
#define KVD_MODEL_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

enum { KVD_CHAT_MARKS = 4 };

typedef struct {
    const char *name;
    const char *bos;   /* beginning-of-text token, or "" */
    const char *start; /* default system message, or "" */
    const char *user;
    /* Text from a user's message to the assistant's answer. */
    const char *header;
    const char *end;
    /* Token that ends an answer; a continued conversation has `end` instead. */
    const char *stop;
    bool trim; /* removes white space around user messages */
    /* True if the template drops earlier reasoning, which a KV cache keeps. */
    bool one_turn;
    bool end_eos; /* `stop` is the eos_token of tokenizer_config.json */
    /* Parts that a normalised template must have and lack; NULL ends a list. */
    const char *has[KVD_CHAT_MARKS], *lacks[KVD_CHAT_MARKS];
} kvd_chat;

/* Values of the option --chat; NULL ends the list. */
extern const char *const kvd_chat_words[];
enum { KVD_CHAT_NONE, KVD_CHAT_AUTO };

/* Returns the format kvd_chat_words[word], or NULL for "none" and "auto". */
const kvd_chat *kvd_chat_form(int word);

/* Returns the format of a template, or NULL if none matches. */
const kvd_chat *kvd_chat_recognise(const char *template_text);

/*
 * Reads chat_template.jinja, else chat_template in tokenizer_config.json; *path is allocated.
 * Returns NULL with *err without a known format, or if bos_token or eos_token disagree.
 */
const kvd_chat *kvd_chat_read(const char *folder, char **path, kvd_err *err);

/* One turn of a conversation, as strings to tokenize separately, in this order. */
typedef struct {
    /* [0] beginning-of-text, [1] system message or previous end, [2] message begin. */
    const char *before[3];
    const char *text; /* user's message, inside the caller's text */
    size_t len;
    /* Text from a user's message to the assistant's answer. */
    const char *after;
} kvd_chat_pieces;

/* Returns the texts of a turn around the UTF-8 message `text`; NULL c: the message alone. */
kvd_chat_pieces kvd_chat_around(const kvd_chat *c, const char *text, bool first);

#endif
