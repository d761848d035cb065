"""Files and data sets at addresses of the web: `downloads` fetches and unpacks, `archives` keeps what is unpacked."""
