from relevo.loggers import guard

guard()
