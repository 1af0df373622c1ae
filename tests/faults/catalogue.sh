# shellcheck shell=bash disable=SC2034
# The form of a fault, and how it is planted. Read by tests/faults/run.

# Reads a fault into what, file, unit, test, wanted_case, old, new. Fails where a part but for unit
# is missing.
read_fault() {
  local line section=head
  what='' file='' unit='' test='' wanted_case='' old='' new=''
  while IFS= read -r line; do
    case $section:$line in
      head:'what: '*) what=${line#what: } ;;
      head:'file: '*) file=${line#file: } ;;
      head:'unit: '*) unit=${line#unit: } ;;
      head:'test: '*) test=${line#test: } ;;
      head:'case: '*) wanted_case=${line#case: } ;;
      head:'--- old') section=old ;;
      old:'--- new') section=new ;;
      new:'--- end') section=end ;;
      old:*) old+=$line$'\n' ;;
      new:*) new+=$line$'\n' ;;
    esac
  done <"$1"
  old=${old%$'\n'} new=${new%$'\n'}
  [[ $section == end && -n $what && -n $file && -n $test && -n $wanted_case && -n $old ]]
}

# Replaces old by new in file $1. Prints what is wrong unless old occurs exactly once.
apply_fault() {
  local text rest
  [[ -f $1 ]] || { echo "there is no header $file"; return 1; }
  text=$(cat "$1" && printf x) && text=${text%x}
  rest=${text#*"$old"}
  [[ $rest != "$text" ]] || { echo "the old text is not in $file"; return 1; }
  [[ ${rest#*"$old"} == "$rest" ]] || { echo "the old text occurs twice in $file"; return 1; }
  [[ $old != "$new" ]] || { echo "the new text is the old one"; return 1; }
  printf '%s%s%s' "${text%%"$old"*}" "$new" "$rest" >"$1"
}
