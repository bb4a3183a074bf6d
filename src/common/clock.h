/* The clock of every duration that a result file holds. */
#ifndef KVD_COMMON_CLOCK_H
#define KVD_COMMON_CLOCK_H

/* Seconds since some moment before the program started; never set back, unlike the time of day. */
double kvd_clock_s(void);

#endif
