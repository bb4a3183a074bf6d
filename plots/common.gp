# What every figure shares: terminal, fonts, colours. Load it before a figure's own script:
#
#   gnuplot -e "term='svg'; out='figure.svg'; width=900; height=420; csv='tables/x.csv'" common.gp x.gp
#
# Colours are those of Okabe and Ito (2008), told apart by every kind of colour vision, without the
# yellow that white paper swallows; line and point types differ as well.
if (!exists("width"))  width = 900
if (!exists("height")) height = 420

set encoding utf8
if (term eq 'svg') set terminal svg size width,height dynamic font 'sans-serif,13' noenhanced linewidth 1.2
if (term eq 'png') set terminal pngcairo size 2*width,2*height font 'Sans,13' fontscale 1.75 noenhanced linewidth 2 background rgb 'white'
set output out

set datafile separator comma
set datafile missing NaN

set linetype 1 lc rgb '#0072b2' pt 7 ps 0.5 dt 1
set linetype 2 lc rgb '#d55e00' pt 5 ps 0.5 dt 1
set linetype 3 lc rgb '#009e73' pt 9 ps 0.6 dt 1
set linetype 4 lc rgb '#cc79a7' pt 11 ps 0.6 dt 1
set linetype 5 lc rgb '#e69f00' pt 13 ps 0.6 dt 1
set linetype 6 lc rgb '#56b4e9' pt 4 ps 0.6 dt 1
set linetype 7 lc rgb '#8a6d3b' pt 6 ps 0.6 dt 1
set linetype 8 lc rgb '#7f7f7f' pt 8 ps 0.6 dt 1
set linetype cycle 8

set style line 100 lc rgb '#9a9a9a' lw 0.6 dt 3
set grid back ls 100
set border 3
set tics nomirror out scale 0.6
set key outside top center horizontal noenhanced samplen 2.5 width 1

# Light to dark; cividis (Nunez, Anderton and Renslow 2018) reads the same without colour.
set palette defined (0 '#00224e', 0.25 '#3b496c', 0.5 '#7d7c78', 0.75 '#bcae6c', 1 '#fee838')

# The distinct texts of a column, in the order of the file: first collect them with
#   stats csv skip 1 using (note(strcol(1))) nooutput
# then words(names) is their number and word(names, i) the i-th. gnuplot cuts a text at a comma or a quote:
# kvdim-report writes series names without them.
names = ''
longest = 1
note(s) = (strstrt(names, '"'.s.'"') ? 0 : (names = names.' "'.s.'"', longest = strlen(s) > longest ? strlen(s) : longest, 1))

# Where a series has many points it is a grid of settings, whose order means nothing: points without a line. After note():
#   do for [i=1:n] { found = 0; stats csv skip 1 using (tally(strcol(1) eq word(names, i))) nooutput; is_grid = is_grid.(found > 40 ? ' 1' : ' 0') }
is_grid = ''
tally(hit) = (found = found + (hit ? 1 : 0), found)
line(i) = is_grid eq '' || word(is_grid, i) eq '0'

# A key of these names below the panels, as a panel of its own: gnuplot breaks a key that is higher than its panel into more columns and leaves out what
# has no room. key_rows(most) lines of 19, in as many columns as there is room for, `most` at the most; kvdim-report makes the figure higher
# by the same rule (kvd_height_with_key). At the end of a multiplot, with `rows` lines: @key_below
key_columns(most) = (key_fit = int(width/(8.5*longest + 85)), key_fit < 1 ? 1 : key_fit > most ? most : key_fit)
key_rows(most) = int(ceil(words(names)/(1.0*key_columns(most))))
key_style = 'linespoints lt i'; key_points = 'points lt i'; key_font = ',13'
key_below = "unset logscale; unset title; unset xlabel; unset ylabel; unset label; unset arrow; unset tics; unset border; unset grid; set offsets 0, 0, 0, 0; \
set lmargin at screen 0; set rmargin at screen 1; set bmargin at screen 0; set tmargin at screen (8 + 19.0*rows)/height; \
set key at screen 0.5, 4.0/height center bottom vertical maxrows rows noenhanced samplen 2.5 font key_font; \
plot [0:1] [0:1] for [i=1:n] NaN with @key_style title (line(i) ? word(names, i) : ''), for [i=1:n] NaN with @key_points title (line(i) ? '' : word(names, i))"

# A pair as the papers write it.
pair_title(p) = p eq 'qk' ? 'Q-K pair' : p eq 'vw' ? 'V-W_O pair' : p eq 'q' ? 'Q' : p eq 'k' ? 'K' : \
                p eq 'v' ? 'V' : p eq 'wv' ? 'W_V' : p

# A panel without a single value cannot be plotted. Count first: ok = 0, stats csv skip 1 using (VALID ? count(0) : 0)
# nooutput, and draw the empty panel when ok stays 0. (The count must not be the range, hence its own variable.)
ok = 0
count(x) = (ok = ok + 1, 0)
