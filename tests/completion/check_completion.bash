# check_completion.bash DISTGRAD: sources the completion and asks it as bash would, in the repository's root.
set -u
distgrad=$1
source <("$distgrad" completion bash) || exit 1
failures=0

# Bash's own splitting of the line up to the cursor: at blanks, and at = and :, which are words too.
split() {
  local text=$1 word
  COMP_WORDS=()
  for word in $text; do
    while [[ $word =~ ^([^=:]*)([=:]+)(.*)$ ]]; do
      [[ ${BASH_REMATCH[1]} ]] && COMP_WORDS+=("${BASH_REMATCH[1]}")
      COMP_WORDS+=("${BASH_REMATCH[2]}")
      word=${BASH_REMATCH[3]}
    done
    [[ $word ]] && COMP_WORDS+=("$word")
  done
  [[ $text == *' ' ]] && COMP_WORDS+=('')
}

# completes LINE WANTED...: exactly these, in any order. "..." among them: and others.
completes() {
  local line=$1 wanted missing=() more='' got
  shift
  split "$line"
  COMP_WORDS[0]=$distgrad
  COMP_LINE=$line COMP_POINT=${#line} COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  COMPREPLY=()
  _distgrad 2>/tmp/completion_errors.$$
  got=$(printf '%s\n' "${COMPREPLY[@]}" | sort)
  for wanted in "$@"; do
    [[ $wanted == ... ]] && more=1 && continue
    grep -qxF -- "$wanted" <<<"$got" || missing+=("$wanted")
  done
  if ((${#missing[@]})) || { [[ ! $more ]] && ((${#COMPREPLY[@]} != $#)); } || [[ -s /tmp/completion_errors.$$ ]]; then
    printf 'FAIL %q\n  wanted: %s\n  got:    %s\n' "$line" "$*" "${got//$'\n'/ }"
    cat /tmp/completion_errors.$$
    failures=$((failures + 1))
  fi
  rm -f /tmp/completion_errors.$$
}

completes 'distgrad ' run explain audit golden list schema doctor help ...
completes 'distgrad sch' schema
completes 'distgrad run --dt' --dtype
completes 'distgrad run --golden' --golden
completes 'distgrad run --dtype ' float64 float32 bfloat16 float16
completes 'distgrad run --dtype float64,b' float64,bfloat16
completes 'distgrad run --dtype=fl' float64 float32 float16
completes 'distgrad run --subject torch_' torch_nn torch_functional torch_xla
completes 'distgrad run --subject reference,in_' reference,in_place
completes 'distgrad run --subject all_reduce=torch_n' torch_nn
completes 'distgrad run --subject=all_reduce=torch_n' torch_nn
completes 'distgrad audit meg' megatron
completes 'distgrad audit --objective mean all_g' all_gather=
completes 'distgrad list ' scenarios cases collectives subjects backends rules findings
completes 'distgrad list cases scenarios/deb' scenarios/debate
completes 'distgrad golden ' update check diff
completes 'distgrad golden check scenarios/debate/all_reduce_sum_m' scenarios/debate/all_reduce_sum_mean.json
completes 'distgrad schema s' scenario
completes 'distgrad help gol' golden
completes 'distgrad completion ' bash
completes 'distgrad run --world-size '
completes 'distgrad run --world-size 3 scenarios/debate scenarios/deb' scenarios/debate
completes 'distgrad run --quiet scenarios/debate/all_reduce_sum.json:subject=in' in_place
completes 'distgrad explain scenarios/debate/all_reduce_sum.json:subject=torch_n' torch_nn
completes 'distgrad run --json READ' README.md
completes 'distgrad run --golden gol' golden
completes 'distgrad run README' # no scenario
completes 'distgrad run --golden=gol' golden
completes 'distgrad nonsense --'

((failures == 0)) && echo "ok" || exit 1
