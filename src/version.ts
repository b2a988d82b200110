// The package's own version, as workers register it. A test holds it to package.json.
export const VERSION = "0.1.0";
