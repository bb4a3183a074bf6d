# Terminal, fonts and colours of all figures. Load it before a figure's own script:
#
#   gnuplot -e "term='svg'; out='figure.svg'; width=900; height=420; csv='tables/x.csv'" common.gp x.gp
#
# The first colours are those of Okabe and Ito (2008), told apart by every kind of colour vision; points differ as well.
if (!exists("width"))  width = 900
if (!exists("height")) height = 420

set encoding utf8
if (term eq 'svg') set terminal svg size width,height dynamic font 'sans-serif,13' noenhanced linewidth 1.2
if (term eq 'png') set terminal pngcairo size 2*width,2*height font 'Sans,13' fontscale 1.75 noenhanced linewidth 2 pointscale 2 background rgb 'white'
set output out

set datafile separator comma
set datafile missing NaN

# Colours of series that are no methods (texts, layers, machines).
tints = '#0072b2 #d55e00 #009e73 #cc79a7 #c98a00 #3a9bd4 #8a6d3b #7f7f7f'
do for [i=1:8] { set linetype i lc rgb word(tints, i) pt int(word('7 5 9 11 13 4 6 8', i)) ps 0.6 dt 1 }
set linetype cycle 8

# One colour per method in every figure, as NAME and the colour after it. All are read on white and on the dark page.
method_tints = 'none #7f7f7f zack #1a80c4 uniform #d55e00 fdc #cc79a7 balanced #009e73 fisher #c98a00 palu #8b5fd0 matryoshka #b23a6f projected #6a4c93 strawman #8a6d3b think #5f9e2f \
kivi #3a9bd4 kvquant #e0524d gear #4a7f86 zipcache #b07d4f rotatekv #d06fd0 hetero #6f86d6 allot #6b8e23 mikv #c0604a \
fp8 #e00070 mxfp4 #c9a227 nvfp4 #76b900 turboquant #b66868 cachegen #c71fff kvtc #0c9718 comet #1f69ff vidkv #b5651d xquant #4b7bec shadowkv #2d6a6a \
h2o #2aa3a3 snapkv #a05195 keyformer #d98040 scissorhands #5a7d4a sparsity #c2577f importance #7a6fb0 received #5f8fd0 lower #9a8a2a leankv #0095ff zdc #b8562f minicache #e0004b xkv #3f833f \
streaming #780cfc tova #fc00f0 pyramidkv #fc0ca8 adakv #fc0018 expectedattention #0054fc knorm #fc006c keydiff #0078fc cake #00c048 kvzip #a818d8 quest #b4009c d2o #fc6cfc \
kvmerger #cc9c9c prefixkv #a8a884 windowkv #fc8490 kvcrush #fc549c ems #c0180c elasticcache #9ca800 taskkv #845448 a2ats #90b46c mpcache #fc2448 \
alisa #fc9000 waterfill #83833f locret #3c5a14'

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

# A series of many points is a grid of settings, whose order means nothing, and is drawn as points without a line. After note():
#   do for [i=1:n] { found = 0; stats csv skip 1 using (tally(strcol(1) eq word(names, i))) nooutput; is_grid = is_grid.(found > 40 ? ' 1' : ' 0') }
is_grid = ''
tally(hit) = (found = found + (hit ? 1 : 0), found)
line(i) = is_grid eq '' || word(is_grid, i) eq '0'

# The look of series i: colour of its method, the text of the name up to the first blank, comma, semicolon or plus, after "model: ". Series of one method differ in
# points and dashes. Series without a method in their name have the colours of linetypes.
cut(s, c) = strstrt(s, c) > 1 ? s[1:strstrt(s, c)-1] : s
method_of(s) = cut(cut(cut(cut(strstrt(s, ': ') ? s[strstrt(s, ': ')+2:*] : s, ' '), ','), ';'), '+')
place_of(m, k) = k > words(method_tints) ? 0 : word(method_tints, k) eq m ? k : place_of(m, k + 2)
place(i) = place_of(method_of(word(names, i)), 1)
kin(i, j) = j >= i ? 0 : kin(i, j + 1) + (place(i) ? place(j) == place(i) : !place(j))
hue(i) = place(i) ? word(method_tints, place(i) + 1) : word(tints, kin(i, 1)%8 + 1)
shape(i) = int(word('7 5 9 11 13 4 6 8', (place(i) ? place(i)/2 + kin(i, 1) : kin(i, 1) + kin(i, 1)/8)%8 + 1))
dash(i) = place(i) ? kin(i, 1)%5 + 1 : kin(i, 1)/8%5 + 1
mark = 'lc rgb hue(i) pt shape(i) ps 0.6'
look = mark.' dt dash(i)'
dots = 'lc rgb hue(i) pt shape(i) ps 0.45'
thin = 'lc rgb hue(i) lw 0.8 dt 1'

# A key of these names below the panels, as a panel of its own: gnuplot breaks a key that is higher than its panel into more columns and leaves out what
# has no room. key_rows(most) lines of 20, in as many columns as there is room for, `most` at the most; kvdim-report makes the figure higher
# by the same rule (kvd_height_with_key). At the end of a multiplot, with `rows` lines: @key_below
key_columns(most) = (key_fit = int(width/(8.5*longest + 85)), key_fit < 1 ? 1 : key_fit > most ? most : key_fit)
key_rows(most) = int(ceil(words(names)/(1.0*key_columns(most))))
key_style = 'linespoints '.look; key_points = 'points '.dots
key_below = "unset logscale; unset title; unset xlabel; unset ylabel; unset label; unset arrow; unset tics; unset border; unset grid; set offsets 0, 0, 0, 0; \
set lmargin at screen 0; set rmargin at screen 1; set bmargin at screen 0; set tmargin at screen (8 + 20.0*rows)/height; \
set key at screen 0.5, 4.0/height center bottom vertical maxrows rows noenhanced samplen 2.5 font ',13'; \
plot [0:1] [0:1] for [i=1:n] NaN with @key_style title (line(i) ? word(names, i) : ''), for [i=1:n] NaN with @key_points title (line(i) ? '' : word(names, i))"

# A pair as the papers write it.
pair_title(p) = p eq 'qk' ? 'Q-K pair' : p eq 'vw' ? 'V-W_O pair' : p eq 'q' ? 'Q' : p eq 'k' ? 'K' : \
                p eq 'v' ? 'V' : p eq 'wv' ? 'W_V' : p

# gnuplot stops at a plot without a single value. Collect the values of a panel first,
#   @no_span; stats csv skip 1 using (CONDITION ? span(column(k)) : 0) nooutput
# and draw the panel if ok, the number of finite values, is above 0, else the empty panel @no_values.
# lowest and highest are the ends of the values. kvdim-report says under a figure how many are missing.
finite(y) = abs(y) < 1e300
no_span = "ok = 0; lowest = 1e300; highest = -1e300"
span(y) = finite(y) ? (ok = ok + 1, lowest = y < lowest ? y : lowest, highest = y > highest ? y : highest, 0) : 0
no_values = "unset logscale; set label 9 'no values to draw' at graph 0.5, graph 0.5 center; \
plot [0:1] [0:1] NaN notitle; unset label 9"

# Intervals that reach 0 begin at the lower end of a logarithmic axis, `lower`, a power of ten.
lower = -1e300
above(y) = y > lower ? y : lower
decade(y) = 10**floor(log10(y))

# A logarithmic axis of ratios of perplexity, after span() of the values and the ends of their intervals.
ratio_axis = "set logscale y; set yrange [(lowest < 0.95 ? lowest : 0.95)/1.02:highest*1.1]; \
if (highest < 12) { set ytics (0.5, 0.7, 1, 1.5, 2, 3, 5, 10) } else { set ytics (0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000, 1e4, 1e5) }"
