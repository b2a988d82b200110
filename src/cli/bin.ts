#!/usr/bin/env node
// The executable: checks the Node that runs it before anything that an older one could not even parse is loaded.
const [major = 0] = process.versions.node.split(".").map(Number);
if (major < 24) {
  console.error(
    `outlive needs Node 24.16 or newer, and this is Node ${process.versions.node}: install a newer one, or run it with \`npx -p node@24 -p outlive outlive\`.`,
  );
  process.exitCode = 1;
} else {
  import("./main.ts")
    .then(({ main }) => main(process.argv.slice(2)))
    .then(
      (code) => {
        process.exitCode = code;
      },
      (thrown: unknown) => {
        console.error(thrown);
        process.exitCode = 1;
      },
    );
}
