// Compiled with one folder's include path and the header of another: a folder may use only those that
// the table in docs/architecture.md allows, and the build must refuse the rest.
#include SCANJIT_HEADER
