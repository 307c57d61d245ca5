// Placeholder of the build until the first kernel lands.
