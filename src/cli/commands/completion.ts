// `outlive completion SHELL`: a script that completes commands and options, made from the commands themselves.
import type { Command } from "commander";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Register } from "../main.ts";

export const completionCommand: Register = (program, run) => {
  program
    .command("completion")
    .argument("<shell>", "bash, zsh or fish")
    .description("shell completion; for instance: source <(outlive completion bash)")
    .action(
      run(async ({ terminal }, command) => {
        const shell = command.args[0]!;
        const words = wordsOf(program);
        const script = {
          bash: () => bash(words),
          zsh: () => `autoload -U +X bashcompinit && bashcompinit\n${bash(words)}`,
          fish: () => fish(words),
        }[shell];
        if (!script)
          throw new OutliveError(
            ErrorCode.optionInvalid,
            `There is no completion for ${shell}.`,
            "Use bash, zsh or fish.",
            { shell },
          );
        terminal.answer({ shell, script: script() }, script);
      }),
    );
};

/** What may follow each command ("" is the program itself). */
function wordsOf(program: Command): ReadonlyMap<string, readonly string[]> {
  const words = new Map<string, readonly string[]>();
  const flags = (command: Command): string[] => command.options.flatMap(({ long }) => (long ? [long] : []));
  const walk = (command: Command, path: readonly string[]): void => {
    const names = command.commands.flatMap((child) => [child.name(), ...child.aliases()]);
    words.set(path.join(" "), [...names, ...flags(command), ...(path.length > 0 ? flags(program) : []), "--help"]);
    for (const child of command.commands) walk(child, [...path, child.name()]);
  };
  walk(program, []);
  return words;
}

function bash(words: ReadonlyMap<string, readonly string[]>): string {
  const cases = [...words].map(([path, next]) => `    "${path}") words="${next.join(" ")}" ;;`);
  return `_outlive() {
  local path="" word words="" current="\${COMP_WORDS[COMP_CWORD]}"
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ "$word" == -* ]] || path="\${path:+$path }$word"
  done
  while :; do
    case "$path" in
${cases.map((line) => `  ${line}`).join("\n")}
    esac
    [[ -n "$words" || -z "$path" ]] && break
    [[ "$path" == *" "* ]] && path="\${path% *}" || path=""
  done
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _outlive outlive
`;
}

function fish(words: ReadonlyMap<string, readonly string[]>): string {
  const lines = [...words].flatMap(([path, next]) => {
    const condition = path === "" ? "__fish_use_subcommand" : `__fish_seen_subcommand_from ${path.split(" ").at(-1)}`;
    return next.map((word) => {
      const what = word.startsWith("--") ? `-l ${word.slice(2)}` : `-f -a ${word}`;
      return `complete -c outlive -n "${condition}" ${what}`;
    });
  });
  return `${lines.join("\n")}\n`;
}
