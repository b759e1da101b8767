"""Random bash scripts: every kind of syntax, broken ones too, that do the same whenever and wherever they run.

They write into their own directory only, know few names (`NAMES`, `FUNCTIONS`), and end soon.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from hypothesis import strategies as st

NAMES = ("x", "y", "z", "arr", "map", "REPLY", "word", "i")
FUNCTIONS = ("f", "g")
T = TypeVar("T")
Texts = st.SearchStrategy[str]


def one(*kinds: str) -> Texts:
    return st.sampled_from(kinds)


def one_of_these(table: str) -> Texts:
    """One entry: they are separated by ¦ and line breaks, with ⏎, ␍ and ⇥ for what they are signs of."""
    entries = (entry.strip() for line in table.splitlines() for entry in line.split("¦"))
    return one(*(entry.translate({ord("⏎"): "\n", ord("␍"): "\r", ord("⇥"): "\t"}) for entry in entries if entry))


# -- what they are made of ------------------------------------------------------------------------

LETTERS = "ab1 \t'\"\\$`!#~*?[]{}()<>|&;=%^-+:,.@éß日\U0001f642\x01\x07\x0b\x7f"
TEXT = st.text(st.sampled_from(LETTERS), max_size=10).map(lambda text: text.replace("$$", "$"))
LINES = st.lists(TEXT, max_size=4).map("\n".join)
BARE = one_of_these(r"""
    a ¦ b1 ¦ é日 ¦ -n ¦ * ¦ f* ¦ ?1 ¦ [a-f]1 ¦ d/* ¦ ~ ¦ a=b ¦ a#b ¦ {a,b}{1,2} ¦ {1..3} ¦ {c..a} ¦ ! ¦ a\ b
    \$x ¦ \\ ¦ a\⏎b ¦ '' ¦ "" ¦ a'b'"c" ¦ \* ¦ = ¦ @ ¦ ^ ¦ a!b ¦ !! ¦ $ ¦ '$x' ¦ 1 ¦ \ ¦ +(a)
""")
ANSI = st.lists(
    one_of_these(r"a ¦ ⏎ ¦ \t ¦ \n ¦ \\ ¦ \' ¦ \x41 ¦ \u00e9 ¦ \101 ¦ \a ¦ \c ¦ \q ¦ $x ¦ ` ¦ é"), max_size=5
).map(lambda parts: f"$'{''.join(parts)}'")
ARITHMETIC = one_of_these(r"""
    1 + 2 ¦ x ¦ x++ ¦ x * 3 ¦ 2 ** 10 ¦ x = 5 ¦ x > 1 ? 7 : 8 ¦ 7 / 2 ¦ 7 % 0 ¦ 1 / 0 ¦ 08 ¦ arr[0] + 1 ¦ x + ¦ (1
    a b ¦ 0x1f ¦ 16#ff ¦ x += 2 ¦ ~1 ¦ !x ¦ 1, 2 ¦ $x + 1 ¦ $(echo 3) * 2 ¦ -7 / 2 ¦ '1' ¦ y-- ¦ 1 << 3
""")
EXPANSION = one_of_these(r"""
    $x ¦ ${x} ¦ ${y} ¦ $z ¦ ${x:-none} ¦ ${x-'a b'} ¦ ${x:+some} ¦ ${y:=made} ¦ ${#x} ¦ ${x%?} ¦ ${x##*a} ¦ ${x/a/b}
    ${x//[a-c]/-} ¦ ${x^^} ¦ ${x:1:2} ¦ ${x@Q} ¦ ${x: -1} ¦ ${arr[@]} ¦ ${arr[*]} ¦ ${#arr[@]} ¦ ${arr[0]}
    ${arr[-1]} ¦ ${!arr[@]} ¦ ${arr[@]:1} ¦ ${map[a]} ¦ $# ¦ $@ ¦ $* ¦ $1 ¦ $2 ¦ $?
    ${FUNCNAME[0]} ¦ $(<f1) ¦ ${x:-$(echo inner)} ¦ ${x:-"a}"} ¦ ${x:-'}'} ¦ $(( x + 1 )) ¦ $[1+1] ¦ ${#} ¦ ${@:2}
    $0 ¦ $IFS ¦ ${x:-`echo old`} ¦ $PWD ¦ ${OLDPWD##*/} ¦ ${x@A} ¦ ${BASH_VERSION:0:1}
""")
SIMPLE = one_of_these(r"""
    : ¦ true ¦ false ¦ (exit 3) ¦ ! true ¦ ! false ¦ echo ¦ x=1 ¦ x= ¦ x='a b' ¦ y=$x ¦ x=$y$x ¦ x+=1 ¦ export x
    export y=2 ¦ declare -i z=3+4 ¦ declare x=d ¦ declare -p x ¦ declare -A map=([a]=1 [b]='2 3')
    arr=(a 'b c' "$x") ¦ arr+=(d) ¦ arr[3]=e ¦ arr=() ¦ unset x ¦ unset arr ¦ unset 'arr[0]' ¦ unset -f f
    local x=9 ¦ shift ¦ shift 5 ¦ set -- a 'b c' d ¦ set -- ¦ set a b ¦ getopts ab: word -a -b 3 ¦ let x=x+1
    let 'y = 2 * 3' ¦ ((x++)) ¦ (( x > 0 )) ¦ (( 1 / 0 )) ¦ [ -e f1 ] ¦ [ a = b ] ¦ [ a -eq 1 ] ¦ [ 1 -eq 1
    test -n "$x" ¦ [[ $x == a* ]] ¦ [[ a =~ (a)(b)? ]] ¦ [[ -z $y && -n $x ]] ¦ [[ a < b ]]
    echo ${BASH_REMATCH[1]} ¦ cat f1 ¦ cat <f1 ¦ cat missing ¦ cat < missing ¦ cat <<<'here' ¦ cat <<<"$x" ¦ cat
    sort f1 | cat -n ¦ cat f1 | sort -r ¦ wc -l <f1 ¦ awk '{print NR": "$0}' f1 ¦ sed 's/a/<&>/g;$!d' f1
    printf 'b\na\n' | sort ¦ seq 3 | tac ¦ seq 5 | awk '{s+=$1} END {print s}' ¦ seq 1000 | head -n 2
    seq 9999 | head -n 3 ¦ ls | cat ¦ ls -1 ¦ ls d ¦ echo a | tee f1 ¦ tr a-z A-Z <<<abc ¦ grep -c a f1 ¦ echo *
    echo d/* ¦ echo 'a b' | { read x y; echo $y; } ¦ echo 5 | read x ¦ seq 3 | while read x; do echo n$x; done
    cat f1 - <<<in ¦ diff <(echo a) <(echo b) ¦ cat <(echo sub) ¦ echo out > >(cat) ¦ read x
    read -r x y <<<'a b c' ¦ read x <f1 ¦ IFS=, read -ra arr <<<a,b,c ¦ mapfile -t arr <f1 ¦ read -d '' x <<<'a⏎b'
    read -n 1 x <<<abc ¦ IFS=: ¦ IFS=$' \t\n' ¦ cd d ¦ cd missing ¦ cd - ¦ cd ¦ cd /opt/tbench/share ¦ cd "$OLDPWD"
    cd a b ¦ pushd d ¦ popd ¦ dirs ¦ pwd ¦ mkdir d ¦ mkdir -p d/e; cd d ¦ touch f1 ¦ rm f1 ¦ rm -f f1 ¦ mv f1 f2
    cp f1 f2 ¦ ln -s f1 l ¦ chmod 600 f1 ¦ umask 077 ¦ umask ¦ exec 3>f3 ¦ echo three >&3 ¦ exec 3>&-
    exec 3<f1; cat <&3 ¦ echo err >&2 ¦ echo out; echo err >&2 ¦ sh -c 'echo o; echo e >&2' ¦ exec 4>&1 ¦ exec 2>&1
    exec >f6 ¦ exec 2>f4 ¦ exec 2>/dev/null ¦ exec >f5 2>&1 ¦ exec <f1 ¦ exec {word}>f1; echo w >&$word
    exec 10>f2; echo ten >&10 ¦ no-such-command ¦ no-such-command 2>/dev/null ¦ ./missing ¦ d ¦ echo > d
    echo > missing/f ¦ printf '%d\n' abc ¦ printf %s ¦ printf '%q\n' "$x" ¦ echo -e 'a\tb\c' ¦ echo -n a
    printf 'a\rb\n' ¦ printf 'ab\bc\n' ¦ printf '\033[1mbold\033[0m\n' ¦ printf '\377\n' ¦ break ¦ continue
    break 2 ¦ set -e ¦ set +e ¦ set -u ¦ set +u ¦ set -o pipefail ¦ set -f ¦ set +f ¦ set -eu ¦ set -euo pipefail
    set -C ¦ set -a ¦ set -Q ¦ set -o nothing ¦ shopt -s nullglob ¦ shopt -s extglob ¦ shopt -s dotglob
    shopt -s failglob ¦ shopt -u nothing ¦ shopt -s globstar; echo ** ¦ false | true ¦ true | false | true
    false | true; echo ${PIPESTATUS[@]} ¦ wait ¦ true & wait ¦ (exit 4) & wait $!
    (sleep 0.01; echo late) & wait ¦ { echo bg; exit 5; } & wait $! ¦ sleep 0.01 & wait; echo woke
    true & wait; wait $! 2>/dev/null ¦ type f ¦ type cd ¦ command -v cd ¦ command f ¦ builtin echo b
    command -v no-such ¦ hash no-such ¦ f ¦ f 1 2 ¦ g ¦ f | cat ¦ $(f) ¦ x=$(f) ¦ x=5 f ¦ x=5 eval 'echo $x' ¦ eval
    eval 'x=7' ¦ eval 'echo "' ¦ eval 'exit 6' ¦ eval 'return 6' ¦ eval ')' ¦ . ./lib ¦ . ./lib 1 2 ¦ source missing
    . <(echo 'echo sourced; return 3; echo not') ¦ bash -c 'echo $0 $1' a b ¦ bash -c 'exit 4' ¦ sh -c 'exit 5'
    env x=1 bash -c 'echo $x' ¦ bash <<<'echo in; exit 3' ¦ $x ¦ "$x" ¦ $y a ¦ exit ¦ exit 3 ¦ exit 300 ¦ exit -1
    exit a ¦ exit 1 2 ¦ return ¦ return 4 ¦ return a ¦ (exit 7) || exit 8 ¦ false || exit 9 ¦ cd missing || exit 10
    cd missing && exit 11 ¦ (return 3) ¦ (exit 3); exit ¦ exec true ¦ exec bash -c 'echo new; exit 4'
    exec no-such-command ¦ exec sh -c 'exit 3' ¦ (exec no-such-command) ¦ exec <missing ¦ exec >missing/f ¦ ${x:?}
    : ${x:?is unset} ¦ : ${y?no y} ¦ echo ${z:?none} after ¦ echo $unset ¦ echo "$unset" ¦ echo ${unset-none}
    echo ${#unset} ¦ (echo ${y:?sub}; echo not) ¦ echo $((1/0)) ¦ echo $((08)) ¦ x=$((1/0)) ¦ echo ${x!}
    (echo $((1/0))) ¦ export 1a=2 ¦ unset 1a ¦ declare -Z x ¦ 1a=2 ¦ a-b=3 ¦ x[=2
    trap 'echo usr' USR1 && kill -USR1 $BASHPID ¦ trap 'echo err $?' ERR ¦ trap - ERR
    trap '' USR1 && kill -USR1 $BASHPID ¦ trap -p ERR ¦ (trap 'echo bye' EXIT; exit 3) ¦ kill -l 9
    ulimit -n >/dev/null ¦ times >/dev/null ¦ time true 2>/dev/null ¦ echo a#b # comment ¦ # only a comment ¦ #
    test ¦ [ ¦ [ ] ¦ [[ a ]] ¦ echo "a\⏎b" ¦ echo a \⏎  b ¦ echo 'two⏎lines' ¦ echo a;echo b ¦ echo a && echo b
    false && echo b || echo c ¦ true || echo no ¦ ! { false; } ¦ { echo a; echo b; } >f1 ¦ (cd d; pwd)
    (x=inner; echo $x) ¦ { x=outer; } ¦ (echo a; exit 3) | cat ¦ { echo a; exit 3; } | cat ¦ echo $(exit 3)
    x=$(exit 3) ¦ x=$(echo a; exit 4) ¦ x=$(false) true ¦ local x=$(false) ¦ export x=$(false)
    echo `echo a; exit 3` ¦ echo "`echo "in"`" ¦ echo $(echo "$(echo deep)") ¦ echo $(echo ')')
    echo $(# comment )⏎echo x) ¦ echo $(case a in a) echo A;; esac) ¦ case $x in a*) echo A ;; *) echo other ;; esac
    case a in (a) echo 1 ;;& *) echo 2 ;; esac ¦ case $x in esac
    select word in a b; do echo $word; break; done <<<2 ¦ select word in a b; do echo $word; done <f1
    for x; do echo $x; done ¦ for x in; do echo $x; done ¦ until true; do :; done
    for ((i=0; i<3; i++)); do echo $i; done ¦ while false; do :; done
    while read -r word; do echo "<$word>"; done <f1 ¦ for x in 1 2 3; do [ $x = 2 ] && continue; echo $x; done
    for x in 1 2 3; do [ $x = 2 ] && break; echo $x; done ¦ for x in 1 2; do exit 12; done
    for x in 1 2; do false || return 2; done ¦ if false; then :; fi ¦ if true; then false; fi
    if [ -d d ]; then echo dir; elif [ -e f1 ]; then echo file; else echo none; fi
    function h { return 2; }; h ¦ h() { echo h; }; h; unset -f h ¦ f() { echo $FUNCNAME; }; f ¦ f() ( exit 3 ); f
    f() { return; }; false; f ¦ f() { local x=l; g; }; g() { echo $x; }; f
    f() { [ $# -lt 4 ] && { echo $#; f "$@" x; }; }; f ¦ printf -v x '%03d' 7; echo $x ¦ echo {a,b}{1,2}
    echo {01..03} ¦ echo a{ ¦ echo } ¦ echo ! ¦ echo !x ¦ echo \! ¦ echo ~ ¦ echo ~nobody ¦ echo $'a\'b'
    echo $"loc" ¦ echo a\ ¦ caller ¦ suspend -x ¦ test -t 0; echo $? ¦ test -t 1; echo $?
    [ -p /dev/stdin ] ¦ logout ¦ enable -n no ¦ help no-such >/dev/null
    bind -p 2>/dev/null | head -n 0 ¦ command
    shopt -s extglob⏎echo !(f*) +(d|e)
    shopt -s extglob⏎x=$(echo a)⏎case $x in @(a|b)) echo ab ;; esac⏎shopt -u extglob
    shopt -s extglob⏎: ${x:?no x}⏎y=${x//+([a-z])/-}; echo $y @(q) ¦ f() { shopt -s extglob; }; f⏎echo ${x/#?(a)} ?(q)
    echo 'shopt -s extglob; f() { echo lib f; }; umask 077' >lib; . ./lib⏎x=$(f)⏎echo *(q) $x; touch f2; f
    set -u⏎shopt -s extglob⏎echo ${x-none} @(q)⏎echo $z !(q) after
    shopt -s extglob⏎set -e⏎x=$(echo @(a))⏎[[ $x == @(b) ]]
    shopt -s extglob⏎x=$(echo @(a)) y=b⏎return 3⏎break⏎echo $? @(c) ¦ umask 027; touch f1
    f() { y=$(umask); echo $y; }⏎f ¦ PROMPT_COMMAND=; return 4; echo on ¦ unset PROMPT_COMMAND; break; echo on
    PS1= PS0= PS2=; return ¦ TMOUT=1; echo $TMOUT ¦ TMOUT=1; export TMOUT; bash -c 'echo $TMOUT'
    trap 'echo usr1' USR1; kill -USR1 $BASHPID; echo on ¦ trap 'echo int' INT; kill -INT $BASHPID; echo on
    set -T; f() { echo $1; }; f a ¦ trap 'echo ret' RETURN; . ./lib; trap - RETURN
    ulimit -S -f 0; echo out; (trap '' XFSZ; cat lib >f9) 2>/dev/null; ulimit -S -f unlimited
    ulimit -S -c 0; echo on ¦ exec 5>&1; echo five >&5
    coproc { read x; echo "<$x>"; }; echo in >&"${COPROC[1]}"; read y <&"${COPROC[0]}"; echo $y; wait
    exec 5<f1 6>&1; read x <&5; echo $x >&6; exec 5<&- 6>&- ¦ exec 4>f4; echo four >&4; exec 4>&-; cat f4
""")
BROKEN = one_of_these(r"""
    echo "abc ¦ echo 'abc ¦ echo `echo ¦ echo $(echo ¦ echo ${x ¦ echo $((1 + ¦ cat <<E⏎body $x ¦ cat <<'E F'⏎body⏎⏎
    cat <<-E⏎⇥body⏎⇥⇥E ¦ if true; then echo in ¦ if true ¦ if; then ¦ fi ¦ then ¦ else ¦ do ¦ done
    while true; do echo a; break ¦ for x in a b ¦ for ¦ for 1 in a; do :; done ¦ case x in ¦ case x in a) echo a
    case ¦ esac ¦ ;; ¦ ) ¦ ( ¦ ( echo a ¦ { echo a ¦ } ¦ { ¦ f() { ¦ f() ¦ f( { ¦ function ¦ function f ¦ arr=(a
    arr=(a b)) ¦ && echo ¦ echo a && ¦ echo a || ¦ | cat ¦ echo a | ¦ echo a | | cat ¦ ; ¦ ; echo a
    echo a;; echo b ¦ & ¦ & echo ¦ echo a & & echo b ¦ echo > ¦ echo > > ¦ cat < ¦ cat << ¦ cat <<< ¦ echo <( ¦ [[ a
    [[ a == ¦ [[ ( a ]] ¦ ((1 + ¦ (( 1 ) ) ¦ echo a\ ¦ echo \ ¦ ! ¦ ! ! ¦ echo a) b ¦ echo (a) ¦ x=( ¦ select
    coproc ¦ time ¦ if true; then fi ¦ while do done ¦ { } ¦ () ¦ f() { } ¦ ( ) ¦ $( ¦ ` ¦ ' ¦ " ¦ $'a
    echo 'a' "b' c ¦ cat <<E <<F⏎a⏎E⏎b ¦ cat <<E⏎$(echo⏎E ¦ cat <<E⏎`echo⏎E ¦ cat <<E⏎${x⏎E ¦ echo $(cat <<E⏎in⏎)
    echo $(cat <<E⏎in⏎E) ¦ <<E ¦ cat <<''⏎a⏎ ¦ echo a␍ ¦ if true; then␍⏎ echo a␍⏎fi␍ ¦ for x in 1; do␍⏎echo␍⏎done
    echo $(if) ¦ echo $(fi) ¦ eval 'if' ¦ x=$( ¦ echo "$(echo "a)" ¦ echo "${x:-"a" ¦ case a in a) ;; b esac ¦ }; {
    fi; if true; then ¦ echo a; } ; { echo b ¦ echo a⏎)⏎echo b ¦ (( ¦ [[ ¦ ]] ¦ ))
""")
FORMS = one_of_these(r"""
    echo % ¦ echo % ¦ printf '<%s>' %; echo ¦ x=(%) ¦ arr=(%) ¦ for x in %; do echo "$x"; done ¦ set -- % ¦ f %
    sort <<<% ¦ echo % >f1 ¦ echo % >>f2 ¦ echo % 2>f1 ¦ echo % &>é f ¦ echo % >|f1 ¦ echo % <>f1 ¦ echo % >&f2
    echo % >$x ¦ x=% ¦ y=% ¦ z=% ¦ export y=% ¦ local x=% ¦ [[ % == a* ]] ¦ [ % = a ] ¦ case % in a*) echo A;; esac
""")
"""Commands with words where the last % is."""
READERS = one_of_these(r"""
    cat % ¦ cat % >f1 ¦ cat >f2 % ¦ cat - f1 % ¦ sort % | tac ¦ cat %; echo after ¦ x=$(cat); echo "$x" %
    while read -r word; do echo "[$word]"; done % ¦ awk '{print length($0)}' % ¦ bash % ¦ cat % | sed 's/a/b/'
    cat >lib % ¦ cat > './é f' % ¦ read x % ¦ cat % && false ¦ tee f1 % ¦ f % ¦ od -c % ¦ mapfile -t arr %
""")
"""Commands with here-documents where the % is."""
AROUND = one_of_these(r"""
    if true; then⏎@fi ¦ if ! false⏎then @else echo no⏎fi ¦ for x in a b; do⏎@done ¦ for y in 1 2⏎do @done | cat
    {⏎@} ¦ (⏎@) ¦ (⏎@) | cat ¦ {⏎@} >f1 ¦ { @} 2>&1 | sed 's/^/> /' ¦ f() {⏎@} ¦ f() {⏎@}; f a b
    function g() {⏎@}⏎g ¦ f() (⏎@)⏎f ¦ while read -r word; do⏎@done <f1 ¦ seq 2 | while read z; do⏎@done
    case a in⏎(a)⏎@;;⏎b) echo no;;⏎esac ¦ (⏎@) & wait $! ¦ {⏎@} & wait ¦ ! {⏎@}
    if (⏎@); then echo yes; else echo no; fi ¦ {⏎@} || echo failed ¦ {⏎@} && echo fine ¦ x=$(⏎@)⏎echo "$x"
    cat <(⏎@) ¦ until⏎@do break; done ¦ for ((i=0; i<2; i++)); do⏎@done ¦ cat >lib <<'END'⏎@END⏎. ./lib a
    cat >lib <<'END'⏎@END⏎bash lib ¦ bash <<'END'⏎@END ¦ (set -e⏎@) ¦ (set -u⏎@) ¦ set -e⏎@set +e
    f() { set -e⏎@}⏎f ¦ (⏎@exit 3⏎) ¦ trap 'echo err' ERR⏎@trap - ERR ¦ select word in a b; do⏎@break⏎done <<<1
    f() { local x=in⏎@return 5⏎}⏎f || echo $? ¦ {⏎@} </dev/null >>f2 ¦ exec 3>f3⏎@exec 3>&-
    mkdir -p d; cd d⏎@cd .. ¦ (mkdir -p d; cd d⏎@) ¦ if true; then␍⏎@fi ¦ time {⏎@} 2>/dev/null
""")
"""Commands with whole lines where the @ is."""
ENDS = one_of_these(r"⏎⏎ ¦ \ ¦ \⏎ ¦ \⏎⏎ ¦  ⏎⇥⏎ ¦ # end ¦ # ¦ ; ¦ ␍⏎ ¦ \␍⏎ ¦ & ¦ ⏎ \ ¦ ⏎⏎⏎# c")
NEARLY_NOTHING = st.one_of(
    one("", " ", "\t", " \n \n", "\x01", "\ufeffecho bom", "\u00a0echo"),
    one_of_these(
        r"⏎ ¦ ⏎⏎ ¦ # ¦ # a⏎# b⏎ ¦ \ ¦ \⏎ ¦ ␍⏎ ¦ ⏎⏎# c⏎⏎ ¦ : ¦ ; ¦ #!/bin/bash⏎echo a ¦ '⏎ ¦ - ¦ -- ¦ -c ¦ -x echo"
    ),
)


def single_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def without_meaning(text: str, specials: str) -> str:
    """With a backslash before each of the specials."""
    return re.sub(f"[{re.escape(specials)}]", r"\\\g<0>", text)


@dataclass(frozen=True)
class Code:
    """Commands on one line, and the bodies of the here-documents that the lines below it have to hold."""

    line: str
    bodies: str = ""

    @property
    def lines(self) -> str:
        return f"{self.line}\n{self.bodies}"


def named(made_of: Callable[[int], st.SearchStrategy[T]]) -> Callable[[int], st.SearchStrategy[T]]:
    """With a short name: Hypothesis writes out what a strategy is made of, which is megabytes here."""
    made_of = cache(made_of)

    @st.composite
    def one_of_them(draw: st.DrawFn, depth: int) -> T:
        return draw(made_of(depth))

    return cache(one_of_them)


@named
def words(depth: int) -> Texts:
    return st.lists(word(depth), max_size=3).map(" ".join)


@named
def word(depth: int) -> Texts:
    deeper = [substitutions(depth - 1)] if depth else []
    part = st.one_of(TEXT.map(lambda text: without_meaning(text, '\\"$`')), EXPANSION, *deeper)
    return st.one_of(
        BARE,
        TEXT.map(single_quoted),
        LINES.map(single_quoted),
        ANSI,
        EXPANSION,
        st.lists(part, max_size=3).map(lambda parts: f'"{"".join(parts)}"'),
        ARITHMETIC.map("$(({}))".format),
        *deeper,
    )


@named
def substitutions(depth: int) -> Texts:
    return st.one_of(
        commands(depth).map(lambda code: f"$({code.lines})" if code.bodies else f"$({code.line})"),
        script_lines(depth).map("$(\n{})".format),
        word(0).map(lambda text: without_meaning(text, "\\`")).map("`echo {}`".format),
    )


@named
def here_documents(depth: int) -> st.SearchStrategy[Code]:
    quoted_line = st.one_of(
        TEXT, one("", "\t\ttabbed\t", "  spaces  ", "#", "\\", "a\\\\b", "'", '"', "$", "$ x", "\\$x")
    )
    live_line = st.one_of(
        quoted_line.map(lambda text: without_meaning(text, "$`")),
        EXPANSION,
        ARITHMETIC.map("$(({}))".format),
        *([substitutions(depth - 1)] if depth else []),
    )
    delimiter = one("E", "E", "EOF", "é")
    indent = one("", "", "\t", "\t\t")
    return st.one_of(
        st.builds(here_document, READERS, delimiter, one("%"), indent, st.lists(live_line, max_size=4)),
        st.builds(
            here_document, READERS, delimiter, one("'%'", '"%"', "\\%"), indent, st.lists(quoted_line, max_size=4)
        ),
    )


def here_document(reader: str, delimiter: str, quoted: str, indent: str, lines: list[str]) -> Code:
    body = "".join(f"{indent}{line}\n" for line in lines if line.strip("\t") != delimiter)
    operator = f"<<{'-' if indent else ''}{quoted.replace('%', delimiter)}"
    return Code(reader.replace("%", operator), f"{body}{indent}{delimiter}\n")


@named
def commands(depth: int) -> st.SearchStrategy[Code]:
    return st.one_of(
        SIMPLE.map(Code),
        SIMPLE.map(Code),
        st.builds(with_words, FORMS, words(depth)),
        st.builds(with_words, FORMS, words(depth)),
        here_documents(depth),
        st.builds(joined, here_documents(0), one("; "), here_documents(0)),
        *([compounds(depth - 1)] if depth else []),
    )


@named
def compounds(depth: int) -> st.SearchStrategy[Code]:
    lines = script_lines(depth)
    return st.one_of(
        st.builds(lambda form, inner: Code(form.replace("@", inner)), AROUND, lines),
        st.builds(lambda form, inner: Code(form.replace("@", inner)), AROUND, lines),
        st.builds(joined, commands(depth), one(" && ", " || ", "; ", " | cat; ", " & wait; "), commands(depth)),
        lines.map(lambda inner: Code(f"eval {single_quoted(inner)}")),
        lines.map(lambda inner: Code(f"bash -c {single_quoted(inner)}")),
    )


def with_words(form: str, said: str) -> Code:
    before, _, behind = form.rpartition("%")
    return Code(f"{before}{said}{behind}")


def joined(first: Code, how: str, second: Code) -> Code:
    """On one line, where nothing keeps them from it."""
    if "\n" in first.line or "#" in first.line:
        return Code(f"{first.lines}{second.line}", second.bodies)
    return Code(f"{first.line}{how}{second.line}", first.bodies + second.bodies)


@named
def script_lines(depth: int) -> Texts:
    """Whole lines, each with its newline."""
    return st.lists(commands(depth).map(lambda code: code.lines), min_size=1, max_size=4).map("".join)


# -- scripts -------------------------------------------------------------------------------------

CONCURRENT = re.compile(r"\||&(?!&)|[<>]\(")
"""Constructs that run processes concurrently."""
_THERE_IS_SOMETHING = (
    "x=a; y='b c'; arr=(1 '2 3'); mkdir d; printf 'b\\na c\\n' >f1; echo 'echo lib $*; false' >lib; f() { g $*; }\n"
)
WELL_FORMED = st.builds("{}{}".format, one("", _THERE_IS_SOMETHING), script_lines(2))


def mutated(script: str, where: float, change: str, length: int) -> str:
    """One character more, or less, or another one."""
    at = round(where * len(script))
    return script[:at] + change + script[at + length :]


def lengthened(script: str, size: int, how: str) -> str:
    return {
        "line": f"x={'y' * size}; echo ${{#x}}\n",
        "lines": "".join(f"echo {number} >>f1\n" for number in range(size // 400)),
        "document": "cat >f1 <<'E'\n" + "\ta $x `b` 'c\n" * (size // 13) + "E\nwc -c <f1\n",
        "comments": f"# {'c' * 78}\n" * (size // 80),
        "argument": f"echo {'word ' * (size // 5)}| wc -w\n",
    }[how] + script


TELLS_OF_THE_SHELL = re.compile(
    r"\$[-$]|\b(set|declare|readonly|export|local|typeset)\s*([;&|)`}\n]|$)|exec 2?>f(?s:.)*exec 2?>f"
)
"""Commands that print process numbers or the shell's whole state, or write messages of any length over each other."""
CHANGES = one("", *"'\"`$(){}[];&|<>\n\t \\#!=*?-a1\r")
LENGTHS = st.integers(1000, 90_000)
SCRIPTS = st.one_of(
    WELL_FORMED,
    WELL_FORMED,
    st.builds("{}{}\n{}".format, script_lines(1), BROKEN, st.one_of(one(""), script_lines(1))),
    # Recursion could go on for ever.
    st.builds(
        mutated, script_lines(1).filter(lambda text: "lt 4" not in text), st.floats(0, 1), CHANGES, st.integers(0, 1)
    ),
    WELL_FORMED.map(lambda text: text.removesuffix("\n")),
    st.builds("{}{}".format, WELL_FORMED, ENDS),
    st.builds("{}echo line $LINENO\n{}".format, WELL_FORMED, WELL_FORMED),
    WELL_FORMED.filter(lambda text: not CONCURRENT.search(text) and "bash" not in text).map(
        lambda text: text.replace("\n", "\r\n")
    ),
    st.builds(lengthened, WELL_FORMED, LENGTHS, one("line", "lines", "document", "comments", "argument")),
    NEARLY_NOTHING,
).filter(lambda text: not TELLS_OF_THE_SHELL.search(text))
"""Anything."""
